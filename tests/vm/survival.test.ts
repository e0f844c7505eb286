// Virtual machines through the ends of the service, and their own: adoption, damage, and the state that is told afterwards.
import { readdirSync, statSync, truncateSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, inject, onTestFailed, test } from "vitest";
import { markedProcesses } from "../../packages/host/src/machine/qemu/driver.ts";
import type { TestSandbox } from "../conformance/session.ts";
import { Client, eventually } from "../fixtures/client.ts";
import { inventory } from "../fixtures/inventory.ts";
import { TestService } from "../fixtures/service.ts";
import { goesOn, reaches, resume, startCounter, suspend } from "./vm-client.ts";

const { home, env, target } = inject("service");
const client = new Client(target);
let service: TestService;
let serving = true;
const start = async (): Promise<void> => {
  await service.start();
  serving = true;
};
const end = async (how: () => Promise<unknown>): Promise<void> => {
  serving = false;
  await how();
};
beforeAll(async () => {
  service = await TestService.running(home, env);
});
afterAll(async () => {
  // The other files use the same service.
  if (!serving) await service.start();
  await client.close();
});

/** Pids of the QEMU of a sandbox. */
async function qemusOf({ id }: TestSandbox): Promise<number[]> {
  const machines = await markedProcesses(service.tag);
  return machines.filter((one) => one.id === id).map(({ pid }) => pid);
}

test("machines run on through kill -9 of the service and are taken over by the next start", async () => {
  onTestFailed(() => console.error(service.logTail()));
  const sandbox = await client.create({ name: "survivor" });
  const before = await startCounter(client, sandbox);
  const qemu = await qemusOf(sandbox);
  expect(qemu).toHaveLength(1);
  await end(() => service.kill9());
  expect(await qemusOf(sandbox)).toEqual(qemu);
  await start();
  await goesOn(client, sandbox, before);
  expect(await qemusOf(sandbox)).toEqual(qemu);
  await suspend(client, sandbox);
  expect(await qemusOf(sandbox)).toEqual([]);
  await resume(client, sandbox);
  await goesOn(client, sandbox, before);
});

test("npm stop suspends them, and a start brings them back with their memory", async () => {
  onTestFailed(() => console.error(service.logTail()));
  const sandbox = await client.create({ name: "sleeper" });
  const before = await startCounter(client, sandbox);
  await end(() => service.stop());
  expect(inventory(home).processes).toEqual([]);
  await start();
  await reaches(client, sandbox.id, "SANDBOX_STATE_RUNNING");
  await goesOn(client, sandbox, before);
});

test("damaged memory gives way to a start from the disk, and the record says so", async () => {
  onTestFailed(() => console.error(service.logTail()));
  const sandbox = await client.create({ name: "damaged" });
  await client.shell(sandbox, "echo kept > /root/kept; echo lost > /tmp/lost");
  await suspend(client, sandbox);
  truncateSync(memoryOf(sandbox), 4_096);
  const { error_message } = await resume(client, sandbox);
  expect(error_message).toContain("started from its disk, without its memory");
  expect(error_message).toContain("damaged");
  expect(await client.shell(sandbox, "cat /root/kept; ls /tmp/lost 2>/dev/null || echo gone")).toBe(
    "kept\ngone\n",
  );
});

test("a machine that was killed comes back from its disk; deleted, it leaves nothing", async () => {
  onTestFailed(() => console.error(service.logTail()));
  const sandbox = await client.create({ name: "killed" });
  await client.shell(sandbox, "echo kept > /root/kept; sync; echo lost > /tmp/lost");
  const [pid = 0] = await qemusOf(sandbox);
  process.kill(pid, "SIGKILL");
  const again = await eventually(
    () => client.exec(sandbox, ["sh", "-c", "cat /root/kept; ls /tmp/lost || true"]).catch(() => undefined),
    (seen) => seen?.ok === true && seen.stdout === "kept\n",
    240_000,
  );
  expect(again?.stdout).toBe("kept\n");
  expect(await qemusOf(sandbox)).not.toContain(pid);
  await reaches(client, sandbox.id, "SANDBOX_STATE_RUNNING");
  await client.session.discard(sandbox.id);
  const left = await eventually(
    async () => [...(await qemusOf(sandbox)), ...directoriesOf(sandbox)],
    (found) => found.length === 0,
    120_000,
  );
  expect(left).toEqual([]);
});

const directoriesOf = ({ id }: TestSandbox): string[] =>
  readdirSync(join(home, "pool/machines")).filter((name) => name === id);

/** The file of a suspended machine's memory. */
function memoryOf({ id }: TestSandbox): string {
  const machine = join(home, "pool/machines", id);
  const snapshot = readdirSync(machine).find((name) => name.startsWith("snapshot-")) ?? "";
  const memory = join(machine, snapshot, "memory");
  expect(statSync(memory).size).toBeGreaterThan(4_096);
  return memory;
}
