/**
 * Checks whether a machine's agent answers. Each try is a new connection: a packet lost before the guest is up would
 * otherwise be sent again only after a second.
 */
import { request } from "node:http";
import { connect } from "node:tls";
import { channelKeyOf, connectToAgent, isForeignAgent } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";

const firstTryMs = 250;
const longestTryMs = 5_000;
const pauseMs = 4;

/** Whether an agent's event loop answers a TLS handshake. Without its key the handshake fails, which is answer enough. */
export function agentAnswers(host: string, port: number, timeoutMs: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect({ host, port, rejectUnauthorized: false });
    const over = (answered: boolean): void => {
      clearTimeout(deadline);
      resolve(answered);
      socket.destroy();
    };
    // A deadline for the whole try: a socket's own timeout restarts with every byte.
    const deadline = setTimeout(() => over(false), timeoutMs);
    socket.on("secureConnect", () => over(false));
    socket.on("error", (error) => over(isForeignAgent(error)));
    socket.on("close", () => over(false));
  });
}

/** Sends a request through the channel and ignores the answer. */
export function askAgent(host: string, port: number, secret: string, timeoutMs: number): Promise<void> {
  return new Promise((resolve) => {
    const attempt = request(
      {
        createConnection: () => connectToAgent({ host, port, key: channelKeyOf(secret) }),
        path: "/",
        headers: { connection: "close" },
      },
      (response) => response.resume(),
    );
    const deadline = setTimeout(() => attempt.destroy(), timeoutMs);
    attempt.on("error", () => undefined);
    attempt.on("close", () => {
      clearTimeout(deadline);
      resolve();
    });
    attempt.end();
  });
}

/** Resolves when the agent answers. Throws deadline_exceeded, or the reason of `ended` if the machine ends first. */
export async function untilAgentAnswers(
  host: string,
  port: number,
  timeoutMs: number,
  ended: Promise<never>,
): Promise<void> {
  const over = new AbortController();
  const tries = tryUntil(host, port, timeoutMs, over.signal);
  try {
    await Promise.race([tries, ended]);
  } finally {
    over.abort();
    tries.catch(() => undefined);
  }
}

async function tryUntil(host: string, port: number, timeoutMs: number, over: AbortSignal): Promise<void> {
  const started = performance.now();
  for (;;) {
    const elapsed = performance.now() - started;
    // Tries get longer, so that one is long enough for a slow guest.
    const tryMs = Math.min(Math.max(firstTryMs, elapsed / 4), longestTryMs);
    if ((await agentAnswers(host, port, tryMs)) || over.aborted) return;
    if (elapsed > timeoutMs)
      throw new ClocheError("deadline_exceeded", `the machine's agent did not answer within ${timeoutMs} ms`);
    await new Promise((resolve) => setTimeout(resolve, pauseMs));
  }
}
