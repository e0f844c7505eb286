// A program that holds memory of the kernel, not in its own pages, until there is no more: it dies and is told why; the machine, a
// service and another program go on where they were, and there is memory for the next one.
import { afterEach, beforeEach, expect, inject, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { type Beside, startBeside } from "../fixtures/beside.ts";
import { type ExecResult, eventually, sharedClient } from "../fixtures/client.ts";
import { kernelHolders } from "../fixtures/kernel-holders.ts";

const client = sharedClient();
const onGvisor = test.runIf(inject("service").runtime === "gvisor");
/** Of a program that takes all it can, from its death on. */
const ANSWERS_MS = 10_000;

let box: TestSandbox;
let beside: Beside;
beforeEach(async () => {
  box = await client.create({ cpus: 1, memory_mb: 256 });
  beside = await startBeside(client, box);
});
afterEach(() => client.session.discard(box.id));

onGvisor.each(kernelHolders)("of %s", async (_what, program) => {
  const held = await client.exec(box, ["python3", "-c", program], { timeout_ms: 120_000 });
  expect(held as ExecResult & { out_of_memory?: boolean }).toMatchObject({
    exit_code: 137,
    out_of_memory: true,
    timed_out: false,
  });
  const died = performance.now();
  const next = await client.exec(box, ["python3", "-c", "print(len(bytearray(128 << 20)))"]);
  expect(next).toMatchObject({ exit_code: 0, stdout: `${128 << 20}\n` });
  expect(performance.now() - died).toBeLessThan(ANSWERS_MS);
  await beside.expectUnharmed();
});

/**
 * Queues and messages that there are: MSG_INFO. A queue that the program had just made when it died has no message and no sender yet, as
 * one in which another program waits for its first message: it holds no memory, and stays.
 */
const left = `import ctypes
n = (ctypes.c_int * 16)(); ctypes.CDLL(None).msgctl(0, 12, n)
print(n[1], "messages,", "few" if n[0] < 2 else n[0], "queues")`;

onGvisor("SysV queues of such a program do not outlive it", async () => {
  const [, program = ""] = kernelHolders.find(([what]) => what.includes("queues")) ?? [];
  await client.exec(box, ["python3", "-c", program], { timeout_ms: 120_000 });
  // A few thousand, one by one.
  const count = async (): Promise<string> => (await client.exec(box, ["python3", "-c", left])).stdout;
  const none = "0 messages, few queues\n";
  expect(await eventually(count, (seen) => seen === none, ANSWERS_MS)).toBe(none);
});
