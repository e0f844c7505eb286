/** What several cells share: commands in a sandbox, times, and a state waited for without the SDK's growing polls. */
import { setTimeout as sleep } from "node:timers/promises";
import type { Lab } from "./lab.ts";
import type { Cell } from "./runner.ts";

export type Client = Lab["cloche"];
export type Sandbox = Awaited<ReturnType<Client["create"]>>;

export interface OpenCells {
  cells: Cell[];
  close(): Promise<void>;
}

const pollMs = 4;
const deadlineMs = 120_000;

/** Time of `work` in ms. */
export async function timed(work: () => Promise<unknown>): Promise<number> {
  const beganMs = performance.now();
  await work();
  return performance.now() - beganMs;
}

export async function ran(sandbox: Sandbox, cmd: string[] = ["true"]): Promise<void> {
  const { ok, exit_code: code, stderr } = await sandbox.exec(cmd);
  if (!ok) throw new Error(`${cmd[0]} ended with ${code}: ${stderr}`);
}

export const shell = (script: string): string[] => ["sh", "-c", script];

export async function suspended(sandbox: Sandbox): Promise<void> {
  await sandbox.suspend();
  await reached(sandbox, "SUSPENDED");
}

/** Resumes to the first exec. `isLarge`: memory that takes longer than an exec waits at the edge. */
export async function resumed(sandbox: Sandbox, isLarge = false): Promise<void> {
  await sandbox.resume();
  if (isLarge) await reached(sandbox, "RUNNING");
  await ran(sandbox);
}

/** The SDK's `waitFor` asks after 50, 125 and 237 ms, which is too coarse for a benchmark. */
async function reached(sandbox: Sandbox, state: "SUSPENDED" | "RUNNING"): Promise<void> {
  const untilMs = performance.now() + deadlineMs;
  while ((await sandbox.refresh()).state !== `SANDBOX_STATE_${state}`) {
    if (performance.now() > untilMs) throw new Error(`the sandbox was never ${state}`);
    await sleep(pollMs);
  }
}
