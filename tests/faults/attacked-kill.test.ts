// The service is killed while a fork bomb, a full disk and a program that has the kernel hold all memory rage in three sandboxes, and
// started again: meanwhile no host ends a bomb. All three answer again and say what became of them, a fourth never noticed, and in the
// end nothing is left.
import { afterAll, beforeAll, expect, onTestFailed, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { Client, eventually } from "../fixtures/client.ts";
import { emptyInventory, grown, inventory } from "../fixtures/inventory.ts";
import { kernelHolders } from "../fixtures/kernel-holders.ts";
import { startService, type TestService } from "../fixtures/service.ts";
import { type Count, countIn, goesOn, startCounter } from "./counter.ts";

const [, holder = ""] = kernelHolders.find(([what]) => what === "full Unix sockets") ?? [];
/** Each is a service that is started again whenever it dies, after a cold start too. */
const attacks: Readonly<Record<string, { cmd: string; args: string[] }>> = {
  "fork bomb": { cmd: "sh", args: ["-c", "f(){ f|f& };f; sleep 100"] },
  "full disk": { cmd: "sh", args: ["-c", "while :; do dd if=/dev/zero of=/fill bs=1M; done"] },
  "kernel's memory": { cmd: "python3", args: ["-c", holder] },
};
const ANSWERS_MS = 30_000;
/** Nothing happened to it, or what did. */
const truth = /^$|^started (again )?from its disk/;

let service: TestService;
let client: Client;
let bystander: TestSandbox;
let counted: Count;
const attacked = new Map<string, TestSandbox>();

beforeAll(async () => {
  service = await startService();
  client = new Client(service.target());
  const shape = { cpus: 1, memory_mb: 512, disk_mb: 1_024 };
  bystander = await client.create(shape);
  counted = await startCounter(client, bystander);
  for (const name of Object.keys(attacks)) attacked.set(name, await client.create(shape));
});
afterAll(async () => {
  await client?.close().catch(() => undefined);
  expect(await service?.destroy()).toEqual([]);
});

async function begin([name, box]: readonly [string, TestSandbox]): Promise<void> {
  const definition = { ...attacks[name], restart: "always" };
  expect((await client.call(box, "PUT", "/v1/services/attack", { json: definition })).status).toBe(200);
  await client.call(box, "POST", "/v1/services/attack/start", { json: {} }).catch(() => undefined);
}

/** It runs, says what became of it, does as it is told, and is rid of its attacker. */
async function expectRecovered([name, box]: readonly [string, TestSandbox]): Promise<void> {
  const answer = async (): Promise<string> =>
    (await client.exec(box, ["echo", "fine"]).catch(() => undefined))?.stdout ?? "";
  expect(await eventually(answer, (seen) => seen === "fine\n", ANSWERS_MS), name).toBe("fine\n");
  const get = (): Promise<{ sandbox: { state: string; error_message: string } }> =>
    client.gateway("GetSandbox", { id: box.id });
  const removed = async (): Promise<number> =>
    (await client.call(box, "DELETE", "/v1/services/attack")).status;
  expect(await eventually(removed, (status) => [200, 404].includes(status), ANSWERS_MS), name).toBeLessThan(
    405,
  );
  const { sandbox } = await get();
  console.error(`${name}: ${sandbox.state} ${sandbox.error_message}`);
  expect(sandbox, name).toMatchObject({
    state: "SANDBOX_STATE_RUNNING",
    error_message: expect.stringMatching(truth),
  });
  expect(await client.shell(box, "rm -f /fill && echo calm > /root/after && cat /root/after"), name).toBe(
    "calm\n",
  );
}

test("the attacked recover and tell the truth, others never notice, nothing is left", async () => {
  onTestFailed(() => console.error(service.logTail(200)));
  await Promise.all([...attacked].map(begin));
  await service.kill9();
  await service.start();
  await Promise.all([...attacked].map(expectRecovered));

  const now = await countIn(client, bystander);
  expect(now.mine).toBe(counted.mine);
  expect(now.count).toBeGreaterThan(counted.count);
  expect(await goesOn(client, bystander)).toBe(true);

  for (const { id } of [bystander, ...attacked.values()]) await client.gateway("DeleteSandbox", { id });
  const left = async (): Promise<unknown[]> =>
    (await client.gateway<{ sandboxes: unknown[] }>("ListSandboxes")).sandboxes;
  expect(await eventually(left, (seen) => seen.length === 0, ANSWERS_MS)).toEqual([]);
  expect(await service.stop()).toMatchObject({ code: 0 });
  expect(grown(emptyInventory, inventory(service.home))).toEqual([]);
});
