/** Waits until an agent accepts connections. */
import { connect } from "node:net";
import { step } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";

const pauseMs = 4;
const attemptMs = 1_000;

/** Resolves when host:port accepts a TCP connection; rejects after `deadlineMs`, or when `stillAlive` answers false. */
export function agentListens(host: string, port: number, options: ListenOptions): Promise<void> {
  return step("agent listens", () => untilListens(host, port, options));
}

interface ListenOptions {
  deadlineMs: number;
  stillAlive: () => Promise<boolean>;
}

async function untilListens(host: string, port: number, options: ListenOptions): Promise<void> {
  const deadline = performance.now() + options.deadlineMs;
  while (performance.now() < deadline) {
    if (await accepts(host, port)) return;
    if (!(await options.stillAlive()))
      throw new ClocheError("unavailable", "the machine ended before its agent listened");
    await new Promise((resolve) => setTimeout(resolve, pauseMs));
  }
  throw new ClocheError(
    "unavailable",
    `the machine did not answer within ${options.deadlineMs / 1_000} s; the host may be overloaded`,
  );
}

function accepts(host: string, port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect({ host, port, timeout: attemptMs });
    const end = (accepted: boolean): void => {
      socket.destroy();
      resolve(accepted);
    };
    socket.once("connect", () => end(true));
    socket.once("error", () => end(false));
    socket.once("timeout", () => end(false));
  });
}
