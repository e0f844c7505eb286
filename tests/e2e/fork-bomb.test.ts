// A fork bomb on one processor: it dies, and whatever else runs in the machine goes on, within seconds and where it was.
import { afterEach, beforeEach, expect, inject, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { type Beside, startBeside } from "../fixtures/beside.ts";
import { eventually, sharedClient } from "../fixtures/client.ts";

const client = sharedClient();
const onGvisor = test.runIf(inject("service").runtime === "gvisor");
/** Left alone, they keep everybody waiting for 36 to 90 s, or end the machine. */
const ANSWERS_MS = 15_000;

let box: TestSandbox;
let beside: Beside;
beforeEach(async () => {
  box = await client.create({ cpus: 1, memory_mb: 1_024 });
  beside = await startBeside(client, box);
});
afterEach(() => client.session.discard(box.id));

const python = `import os
while True:
  try: os.fork(); os.setsid()
  except OSError: pass`;
/** The shell becomes `sleep`: starting one would fail at the limit, and end it with another code. */
const SHELLS = "f(){ f|f& };f; exec sleep 100";
const bombs: readonly (readonly [name: string, cmd: readonly string[]])[] = [
  ["of shells", ["sh", "-c", SHELLS]],
  ["in sessions of their own that fills the memory", ["python3", "-c", python]],
];

/** How many processes there are in the end. */
async function expectCalm(): Promise<void> {
  await beside.expectUnharmed();
  const left = await client.shell(box, "ls /proc | grep -c '^[0-9]'");
  expect(Number(left)).toBeLessThan(20);
}

async function expectEnded(cmd: readonly string[]): Promise<void> {
  const began = performance.now();
  const bomb = await client.exec(box, [...cmd], { timeout_ms: 120_000 });
  expect(bomb).toMatchObject({ exit_code: 137, timed_out: false });
  expect((await client.exec(box, ["echo", "fine"])).stdout).toBe("fine\n");
  expect(performance.now() - began).toBeLessThan(ANSWERS_MS);
}

onGvisor.each(bombs)("a fork bomb %s dies, and the rest lives", async (_name, cmd) => {
  // For a second one the sentry has all the threads already: from the host it looks different.
  await expectEnded(cmd);
  await expectEnded(cmd);
  await expectCalm();
});

onGvisor("a service that is a fork bomb dies each time it is started, and the rest lives", async () => {
  const bomb = { cmd: "sh", args: ["-c", SHELLS], restart: "always" };
  await client.call(box, "PUT", "/v1/services/bomb", { json: bomb });
  await client.call(box, "POST", "/v1/services/bomb/start", { json: {} });
  const restarts = async (): Promise<number> =>
    JSON.parse((await client.call(box, "GET", "/v1/services/bomb")).body.toString()).restarts;
  // Its supervisor heard of its death, and starts it again.
  expect(await eventually(restarts, (seen) => seen > 0, ANSWERS_MS)).toBeGreaterThan(0);
  const asked = performance.now();
  expect((await client.exec(box, ["echo", "fine"])).stdout).toBe("fine\n");
  expect((await client.call(box, "DELETE", "/v1/services/bomb")).status).toBe(200);
  expect(performance.now() - asked).toBeLessThan(ANSWERS_MS);
  await expectCalm();
});
