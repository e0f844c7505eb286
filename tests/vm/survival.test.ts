// Virtual machines through the ends of the service: kill -9 and adoption, stop and start, memory that was damaged meanwhile.
import { statSync, truncateSync } from "node:fs";
import { afterAll, beforeAll, expect, inject, onTestFailed, test } from "vitest";
import { counted, ProcessClient } from "../e2e/processes-as-lived.ts";
import { Client } from "../fixtures/client.ts";
import { inventory } from "../fixtures/inventory.ts";
import { TestService } from "../fixtures/service.ts";
import { qemusOf, snapshotFile } from "./host-side.ts";
import { goesOn, reaches, resume, startCounter, suspend } from "./vm-client.ts";

const { home, env, target } = inject("service");
const client = new Client(target);
let service: TestService;
let serving = true;
const start = async (): Promise<void> => {
  await service.start();
  serving = true;
};
/** A process that says `1`, waits to be told to go on, counts to 2,000 and ends with 9. */
const build = "echo 1; until [ -e /root/go ]; do sleep 0.2; done; seq 2 2000; exit 9";
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

test("machines run on through kill -9 of the service and are taken over by the next start", async () => {
  onTestFailed(() => console.error(service.logTail()));
  const sandbox = await client.create({ name: "survivor" });
  const before = await startCounter(client, sandbox);
  const processes = new ProcessClient(client, sandbox);
  const detached = await processes.start({ cmd: ["sh", "-c", build] });
  const qemu = await qemusOf(home, sandbox);
  expect(qemu).toHaveLength(1);
  await end(() => service.kill9());
  expect(await qemusOf(home, sandbox)).toEqual(qemu);
  await start();
  await goesOn(client, sandbox, before);
  expect(await qemusOf(home, sandbox)).toEqual(qemu);
  await suspend(client, sandbox);
  expect(await qemusOf(home, sandbox)).toEqual([]);
  await resume(client, sandbox);
  await goesOn(client, sandbox, before);
  await client.shell(sandbox, "touch /root/go");
  expect(await processes.wait(detached)).toMatchObject({ exit_code: 9, ended_by: "exit" });
  expect(counted(await processes.output(detached))).toBe(2_000);
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
  await client.shell(sandbox, "echo kept > /root/kept; echo lost > /dev/shm/lost");
  await suspend(client, sandbox);
  const memory = snapshotFile(home, sandbox, "memory");
  expect(statSync(memory).size).toBeGreaterThan(4_096);
  truncateSync(memory, 4_096);
  const { error_message } = await resume(client, sandbox);
  expect(error_message).toContain("started from its disk, without its memory");
  expect(error_message).toContain("damaged");
  expect(await client.shell(sandbox, "cat /root/kept; ls /dev/shm/lost 2>/dev/null || echo gone")).toBe(
    "kept\ngone\n",
  );
});
