import { randomBytes } from "node:crypto";
import type { Client } from "@connectrpc/connect";
import { newSandboxId } from "@cloche/protocol";
import { type HostService, MachineEvent_Kind } from "@cloche/protocol/host";
import { afterEach, beforeEach, expect, it } from "vitest";
import { testKeys } from "../testing/data-plane-caller.ts";
import { clientOf, FakeCluster } from "../testing/fake-cluster.ts";
import { FakeNames } from "../testing/fake-names.ts";
import { FakeWorld } from "../testing/fake-world.ts";

let world: FakeWorld;
let client: Client<typeof HostService>;
/** While set, uploads wait at their beginning. */
let gate: PromiseWithResolvers<void> | undefined;
let underWay = 0;
let most = 0;
let failures = 0;

class GatedNames extends FakeNames {
  override async hold(hold: Parameters<FakeNames["hold"]>[0]): Promise<void> {
    if (hold.name.startsWith("images/") && hold.own === undefined) {
      underWay += 1;
      most = Math.max(most, underWay);
      await gate?.promise.finally(() => undefined);
      underWay -= 1;
      if (failures-- > 0) throw new Error("no gateway answers");
    }
    return super.hold(hold);
  }
}

async function start(): Promise<void> {
  const { host } = await world.start().then(() => world);
  client = clientOf(host);
  await client.setVerificationKeys(testKeys);
}

beforeEach(async () => {
  [gate, underWay, most, failures] = [undefined, 0, 0, 0];
  world = await FakeWorld.open();
  world.cluster = new FakeCluster(new GatedNames(), 2).parts();
  await start();
});
afterEach(async () => {
  gate?.resolve();
  await world.close();
});

async function suspended(): Promise<string> {
  const sandboxId = newSandboxId(randomBytes);
  const shape = { runtime: "gvisor", template: "base", cpus: 1, memoryMb: 256, diskMb: 1_024 };
  await client.createMachine({ spec: { sandboxId, teamId: "team-t", name: "t", ...shape } });
  await client.suspendMachine({ sandboxId });
  return sandboxId;
}

const keyOf = async (sandboxId: string): Promise<string> =>
  (await client.getMachine({ sandboxId })).storedImage?.key ?? "";
const eventuallyStored = async (id: string): Promise<string> => {
  await expect.poll(() => keyOf(id), { timeout: 8_000, interval: 5 }).not.toBe("");
  return keyOf(id);
};

it("tells who watches once the image is whole in storage, and no more once it resumed", async () => {
  const told: string[] = [];
  const watching = new AbortController();
  const watch = (async () => {
    for await (const { kind, machine } of client.watchMachines({}, { signal: watching.signal }))
      if (kind === MachineEvent_Kind.CHANGED) told.push(machine?.storedImage?.key ?? "");
  })().catch(() => undefined);
  const id = await suspended();
  const key = await eventuallyStored(id);
  expect(key).toMatch(new RegExp(`^${id.slice(4)}-3-\\d+-[0-9a-f]{12}$`));
  await expect.poll(() => told).toContain(key);
  await client.resumeMachine({ sandboxId: id });
  expect(await keyOf(id)).toBe("");
  await expect.poll(() => told.at(-1)).toBe("");
  watching.abort();
  await watch;
});

it("uses no key twice", async () => {
  const id = await suspended();
  const first = await eventuallyStored(id);
  await client.resumeMachine({ sandboxId: id });
  await client.suspendMachine({ sandboxId: id });
  expect(await eventuallyStored(id)).not.toBe(first);
});

it("an upload that a resume has overtaken counts for nothing", async () => {
  gate = Promise.withResolvers();
  const id = await suspended();
  await expect.poll(() => underWay).toBe(1);
  await client.resumeMachine({ sandboxId: id });
  gate.resolve();
  await expect.poll(() => underWay).toBe(0);
  await client.suspendMachine({ sandboxId: id });
  await eventuallyStored(id);
});

it("does no more than two at once", async () => {
  gate = Promise.withResolvers();
  const ids = [await suspended(), await suspended(), await suspended(), await suspended()];
  await expect.poll(() => underWay).toBe(2);
  gate.resolve();
  for (const id of ids) await eventuallyStored(id);
  expect(most).toBe(2);
});

it("tries again what failed", async () => {
  failures = 1;
  await eventuallyStored(await suspended());
});

it("a destroyed machine's upload ends", async () => {
  gate = Promise.withResolvers();
  const id = await suspended();
  await expect.poll(() => underWay).toBe(1);
  await client.destroyMachine({ sandboxId: id });
  gate.resolve();
  await expect.poll(() => underWay).toBe(0);
  await world.host.stop({ suspend: false });
  await start();
});

it("begins again at the next start, and leaves alone what is stored", async () => {
  gate = Promise.withResolvers();
  const cutOff = await suspended();
  await expect.poll(() => underWay).toBe(1);
  await start();
  gate.resolve();
  const key = await eventuallyStored(cutOff);
  await start();
  expect(await keyOf(cutOff)).toBe(key);
  await new Promise((resolve) => setTimeout(resolve, 50));
  expect(await keyOf(cutOff)).toBe(key);
});
