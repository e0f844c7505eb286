/** What the cells of time travel share: folders of the bench's own service, data in a sandbox, and log lines of its host. */
import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import type { Lab } from "../lab.ts";
import type { Cell } from "../runner.ts";

export const run = promisify(execFile);

export type Sandbox = Awaited<ReturnType<Lab["cloche"]["create"]>>;

export interface OpenCell {
  cell: Cell;
  close(): Promise<void>;
}

export const shell = (script: string): string[] => ["sh", "-c", script];

/** Random bytes, so that nothing of it is shared or compressed away. `isSynced`: on the disk when it returns. */
export async function fill(sandbox: Sandbox, megabytes: number, isSynced = true): Promise<void> {
  const { exit_code: code, stderr } = await sandbox.exec(
    shell(`head -c ${megabytes}M /dev/urandom > /root/data-${megabytes} ${isSynced ? "&& sync" : ""}`),
  );
  if (code !== 0) throw new Error(`filling ${megabytes} MiB: ${stderr}`);
}

/** The sandbox's disk image on the pool, by the host's record of the machine. */
export async function diskImage(lab: Lab, sandbox: Sandbox): Promise<string> {
  const dir = join(lab.service.home, "pool", "machines", sandbox.id);
  const { disk } = JSON.parse(await readFile(join(dir, "machine.json"), "utf8")) as { disk: string };
  return join(dir, disk);
}

/** A folder on the pool, where images can be cloned by reference. */
export const poolFolder = (lab: Lab): Promise<string> => mkdtemp(join(lab.service.home, "pool", "bench-"));

export const remove = (path: string): Promise<void> => rm(path, { recursive: true, force: true });

/** Time of `work` in ms. */
export async function timed(work: () => Promise<unknown>): Promise<number> {
  const beganMs = performance.now();
  await work();
  return performance.now() - beganMs;
}

/** How long the source stood still in the latest snapshot for forks, as the host logged it. */
export async function latestPauseMs(lab: Lab, sandboxId: string): Promise<number> {
  const deadline = performance.now() + 10_000;
  for (;;) {
    const log = await readFile(join(lab.service.home, "log", "service.log"), "utf8");
    const line = log
      .split("\n")
      .findLast((text) => text.includes("snapshot for forks") && text.includes(sandboxId));
    if (line !== undefined) return (JSON.parse(line) as { pause_ms: number }).pause_ms;
    if (performance.now() > deadline) throw new Error("the host logged no pause");
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
