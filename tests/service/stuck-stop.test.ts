// A stop that takes long says on the console and in the log which part it waits for, and why.
import { spawn } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import { Client } from "../fixtures/client.ts";
import { type CommandResult, startService, type TestService } from "../fixtures/service.ts";

let service: TestService;
beforeAll(async () => {
  service = await startService({ env: { CLOCHE_WARM_POOL: "0", CLOCHE_DRAIN_SECONDS: "1" } });
});
const undo: (() => void)[] = [];
afterEach(async () => {
  for (const one of undo.splice(0)) one();
});
afterAll(async () => {
  expect(await service?.destroy()).toEqual([]);
});

const log = (): string => readFileSync(join(service.home, "log/service.log"), "utf8");

/** Processes of this service whose command line has `words`. */
function processesWith(...words: string[]): number[] {
  return readdirSync("/proc").flatMap((name) => {
    if (!/^\d+$/.test(name)) return [];
    try {
      const line = readFileSync(`/proc/${name}/cmdline`, "latin1").replaceAll("\0", " ");
      return words.every((word) => line.includes(word)) ? [Number(name)] : [];
    } catch {
      return [];
    }
  });
}

function freeze(pids: readonly number[]): () => void {
  expect(pids.length).toBeGreaterThan(0);
  for (const pid of pids) process.kill(pid, "SIGSTOP");
  const thaw = (): void => {
    for (const pid of pids)
      try {
        process.kill(pid, "SIGCONT");
      } catch {
        // It has ended.
      }
  };
  undo.push(thaw);
  return thaw;
}

/** Begins a stop; resolves with its result once `release`, called when the log has `words`, has let it end. */
async function stopUntil(words: string, release: () => void): Promise<CommandResult> {
  const before = log().length;
  const stopped = service.stop();
  await expect.poll(() => log().slice(before), { timeout: 60_000 }).toContain(words);
  // The console is one look behind the log.
  await new Promise((resolve) => setTimeout(resolve, 1_000));
  release();
  return stopped;
}

test("a frozen sandbox", async () => {
  const client = new Client(service.target());
  // Not closed: that would delete the sandbox.
  const sandbox = await client.create({ name: "frozen" });
  const release = freeze(processesWith("runsc-sandbox", service.tag));
  const { code, stderr } = await stopUntil(`the suspend of ${sandbox.id}`, release);
  expect([code, stderr]).toEqual([
    0,
    expect.stringContaining("still stopping host: waits for the suspend of"),
  ]);
  expect(stderr).toContain(sandbox.id);
});

test("a frozen program of the pool", async () => {
  await service.start();
  const { pid } = service.status;
  const release = freeze(
    processesWith("cloche-sys").filter((one) =>
      readFileSync(`/proc/${one}/stat`, "latin1").includes(`) S ${pid} `),
    ),
  );
  const { code, stderr } = await stopUntil("cloche-sys (process", release);
  expect([code, stderr]).toEqual([
    0,
    expect.stringMatching(/still stopping .*: waits for .*cloche-sys \(process \d+\)/),
  ]);
});

test("a program that uses the pool", async () => {
  await service.start();
  const user = spawn("sleep", ["600"], { cwd: join(service.home, "pool") });
  undo.push(() => user.kill("SIGKILL"));
  const { code, stderr } = await stopUntil("the unmount of", () => undefined);
  expect(code).not.toBe(0);
  expect(stderr).toMatch(
    new RegExp(`still stopping pool: waits for the unmount of .*process ${user.pid} \\(sleep\\)`),
  );
  expect(stderr).toMatch(/stopping was not complete: pool: .*cannot be unmounted/);
  user.kill("SIGKILL");
  expect((await service.stop()).code).toBe(0);
});
