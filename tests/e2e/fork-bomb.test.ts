// A fork bomb on one processor: it dies, and whatever else runs in the machine goes on, within seconds and where it was.
import { afterEach, beforeEach, expect, inject, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { eventually, sharedClient } from "../fixtures/client.ts";

const client = sharedClient();
const onGvisor = test.runIf(inject("service").runtime === "gvisor");
/** Left alone, they keep everybody waiting for 36 to 90 s, or end the machine. */
const ANSWERS_MS = 15_000;
const COUNTER = "i=0; while sleep 0.2; do i=$((i+1)); echo $$ $i > /root/count; done";

let box: TestSandbox;
let servicePid = 0;
beforeEach(async () => {
  box = await client.create({ cpus: 1, memory_mb: 1_024 });
  const waits = { cmd: "sleep", args: ["infinity"], restart: "always" };
  await client.call(box, "PUT", "/v1/services/waits", { json: waits });
  const started = await client.call(box, "POST", "/v1/services/waits/start", { json: {} });
  servicePid = (JSON.parse(started.body.toString()) as { pid: number }).pid;
  expect(servicePid).toBeGreaterThan(0);
  // It outlives the exec that began it.
  await client.shell(box, `setsid sh -c '${COUNTER}' >/dev/null 2>&1 </dev/null &`);
  await eventually(count, ([pid]) => pid !== undefined);
});
afterEach(() => client.session.discard(box.id));

const count = async (): Promise<number[]> =>
  (await client.exec(box, ["cat", "/root/count"])).stdout.split(" ").filter(Boolean).map(Number);
const service = async (): Promise<unknown> => {
  const { body } = await client.call(box, "GET", "/v1/services");
  return (JSON.parse(body.toString()) as { services: unknown[] }).services[0];
};
const record = async (): Promise<unknown> =>
  (await client.gateway<{ sandbox: unknown }>("GetSandbox", { id: box.id })).sandbox;

const python = `import os
while True:
  try: os.fork(); os.setsid()
  except OSError: pass`;
const bombs: readonly (readonly [name: string, cmd: readonly string[]])[] = [
  ["of shells", ["sh", "-c", "f(){ f|f& };f; sleep 100"]],
  ["in sessions of their own that fills the memory", ["python3", "-c", python]],
];

async function expectEnded(cmd: readonly string[]): Promise<void> {
  const began = performance.now();
  const bomb = await client.exec(box, [...cmd], { timeout_ms: 120_000 });
  expect(bomb).toMatchObject({ exit_code: 137, timed_out: false });
  expect((await client.exec(box, ["echo", "fine"])).stdout).toBe("fine\n");
  expect(performance.now() - began).toBeLessThan(ANSWERS_MS);
}

onGvisor.each(bombs)("a fork bomb %s dies, and the rest lives", async (_name, cmd) => {
  const [counter, before] = await count();
  // For a second one the sentry has all the threads already: from the host it looks different.
  await expectEnded(cmd);
  await expectEnded(cmd);
  const [samePid, after] = await count();
  expect(samePid).toBe(counter);
  expect(after).toBeGreaterThan(before ?? 0);
  expect(await service()).toMatchObject({ status: "running", pid: servicePid, restarts: 0 });
  expect(await record()).toMatchObject({ state: "SANDBOX_STATE_RUNNING", error_message: "" });
  const left = await client.shell(box, "ls /proc | grep -c '^[0-9]'");
  expect(Number(left)).toBeLessThan(20);
});
