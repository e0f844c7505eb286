import { randomBytes } from "node:crypto";
import { readdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { Client as ConnectClient } from "@connectrpc/connect";
import { newSandboxId } from "@cloche/protocol";
import { type HostService, type Machine, MachinePhase } from "@cloche/protocol/host";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { decodeDescription, descriptionFile, encodeDescription } from "../suspended/image-description.ts";
import { testKeys } from "../testing/data-plane-caller.ts";
import { clientOf, FakeCluster } from "../testing/fake-cluster.ts";
import { FakeNames } from "../testing/fake-names.ts";
import { type FaultMode, FakeWorld } from "../testing/fake-world.ts";

type Client = ConnectClient<typeof HostService>;

const shape = { name: "t", runtime: "gvisor", template: "base", cpus: 1, memoryMb: 256, diskMb: 1_024 };
const spec = (sandboxId: string, fields: object = {}) => ({
  ...shape,
  sandboxId,
  teamId: "team-t",
  env: { A: "1" },
  ...fields,
});

/** Two hosts, each with its own pool, and one storage. */
let here: FakeWorld;
let there: FakeWorld;
let names: FakeNames;
let onHere: Client;
let onThere: Client;

const connect = ({ host }: FakeWorld): Client => clientOf(host);

async function restart(world: FakeWorld): Promise<Client> {
  await world.start();
  const client = connect(world);
  await client.setVerificationKeys(testKeys);
  return client;
}

beforeEach(async () => {
  names = new FakeNames();
  here = await FakeWorld.open();
  there = await FakeWorld.open();
  there.blobsDir = here.blobsDir;
  for (const world of [here, there]) world.cluster = new FakeCluster(names, 6).parts();
  onHere = await restart(here);
  onThere = await restart(there);
});
afterEach(async () => {
  await there.close();
  await here.close();
});

/** Suspends a machine on the first host and waits for its image in storage. */
async function suspended(fields: { diskOnly?: boolean } = {}): Promise<{ id: string; key: string }> {
  const id = newSandboxId(randomBytes);
  await onHere.createMachine({ spec: spec(id) });
  const machine = here.machines.get(id);
  if (!machine) throw new Error("it does not run");
  machine.memory.counter = 42;
  await writeFile(machine.disk, "mine");
  await onHere.suspendMachine({ sandboxId: id, ...fields });
  return { id, key: await stored(id) };
}

async function stored(sandboxId: string): Promise<string> {
  const image = async () => (await onHere.getMachine({ sandboxId })).storedImage;
  await expect.poll(image, { timeout: 5_000, interval: 5 }).toBeDefined();
  return (await image())?.key ?? "";
}

const bring = (sandboxId: string, imageKey: string): Promise<Machine> =>
  onThere.importMachine({ spec: spec(sandboxId), imageKey });

async function expectNothingThere(): Promise<void> {
  expect((await onThere.listMachines({})).machines).toEqual([]);
  expect(await there.orphans(new Set())).toEqual([]);
}

/** The machine continues where it was suspended. */
async function expectSame(id: string): Promise<void> {
  await onThere.resumeMachine({ sandboxId: id });
  const machine = there.machines.get(id);
  expect(machine?.memory).toMatchObject({ counter: 42, assignedTo: id, attached: true });
  expect(await readFile(machine?.disk ?? "", "utf8")).toBe("mine");
}

describe("a suspended machine on another host", () => {
  it("goes on with memory and disk, and with what the gateway says of it now", async () => {
    const { id, key } = await suspended();
    const imported = await onThere.importMachine({
      spec: spec(id, { name: "new", idleSuspendSeconds: 9 }),
      imageKey: key,
    });
    expect(imported).toMatchObject({ phase: MachinePhase.SUSPENDED, errorMessage: "" });
    expect(imported.storedImage).toMatchObject({ key, cpuClass: "cpu-1" });
    await expectSame(id);
    const record = JSON.parse(
      await readFile(join(there.poolDir, "machines", id, "machine.json"), "utf8"),
    ) as object;
    expect(record).toMatchObject({ name: "new", idleSuspendSeconds: 9, env: { A: "1" } });
    expect(record).not.toHaveProperty("stored");
  });

  it("takes no file of the host and no size from its image", async () => {
    const { id, key } = await suspended();
    const path = join(here.blobsDir, "images", key, descriptionFile);
    const image = decodeDescription(await readFile(path), key);
    const hostile = {
      disk: "../../../../etc/shadow",
      snapshot: "../sbx-other/snapshot-1",
      memoryMb: 1e9,
      cpus: 1e6,
    };
    await writeFile(path, encodeDescription({ ...image, record: { ...image.record, ...hostile } }));
    await bring(id, key);
    const own = await readFile(join(there.poolDir, "machines", id, "machine.json"), "utf8");
    const { memoryMb, cpus } = spec(id);
    expect(JSON.parse(own)).toMatchObject({ snapshot: "snapshot-1", memoryMb, cpus });
    expect(own).not.toMatch(/etc|sbx-other/);
    await expectSame(id);
  });

  it("is unpacked once: the machine that is there already is the answer", async () => {
    const { id, key } = await suspended();
    const first = await bring(id, key);
    await rm(here.blobsDir, { recursive: true });
    expect(await bring(id, key)).toEqual(first);
    await onThere.resumeMachine({ sandboxId: id });
    expect((await bring(id, key)).phase).toBe(MachinePhase.RUNNING);
  });

  it.each([
    ["another kind of processor", "cpu-2", false, /the memory was saved on another kind of processor/],
    ["damage that only a try shows", "cpu-1", true, /the memory image is damaged/],
  ])("starts from its disk and says so: %s", async (_, memoryClass, imagesAreLost, words) => {
    const { id, key } = await suspended();
    Object.assign(there, { memoryClass, imagesAreLost });
    const { errorMessage, phase } = await bring(id, key);
    expect(phase).toBe(MachinePhase.SUSPENDED);
    expect(errorMessage).toMatch(/^started from its disk, without its memory: /);
    expect(errorMessage).toMatch(words);
    await onThere.resumeMachine({ sandboxId: id });
    const machine = await onThere.getMachine({ sandboxId: id });
    expect(machine.errorMessage).toBe(`${errorMessage}; services started: none`);
    expect(there.machines.get(id)?.memory.counter).toBe(0);
    expect(await readFile(there.machines.get(id)?.disk ?? "", "utf8")).toBe("mine");
  });

  it("of which the disk alone was kept starts from that", async () => {
    const { id, key } = await suspended({ diskOnly: true });
    expect(await bring(id, key)).toMatchObject({ errorMessage: "", storedImage: { cpuClass: "" } });
    await onThere.resumeMachine({ sandboxId: id });
    const { errorMessage } = await onThere.getMachine({ sandboxId: id });
    expect(errorMessage).toMatch(/it was suspended without it/);
    expect(await readFile(there.machines.get(id)?.disk ?? "", "utf8")).toBe("mine");
  });

  it("comes back to the host that stored it, once that has no copy any more", async () => {
    const { id, key } = await suspended();
    await onHere.destroyMachine({ sandboxId: id });
    await onHere.importMachine({ spec: spec(id), imageKey: key });
    await onHere.resumeMachine({ sandboxId: id });
    expect(here.machines.get(id)?.memory.counter).toBe(42);
  });

  it.each([
    ["another machine's key", { sandboxId: newSandboxId(randomBytes) }],
    ["another team's machine", { teamId: "team-u" }],
  ])("is refused under %s", async (_, other) => {
    const { id, key } = await suspended();
    const asked = onThere.importMachine({ spec: spec(id, other), imageKey: key });
    await expect(asked).rejects.toThrow(/another machine/);
    await expectNothingThere();
  });

  it.each(["../installation", "", `${"a".repeat(20)}-7-4-${"0".repeat(12)}`])(
    "is refused with a key that names none: %j",
    async (imageKey) => {
      const { id } = await suspended();
      await expect(bring(id, imageKey)).rejects.toThrow(/no key of an image|no longer in storage/);
      await expectNothingThere();
    },
  );
});

describe("what is damaged in storage", () => {
  const files = async (): Promise<string[]> =>
    (await readdir(here.blobsDir, { recursive: true, withFileTypes: true }))
      .filter((entry) => entry.isFile() && !entry.parentPath.includes("checkpoints"))
      .map((entry) => join(entry.parentPath, entry.name));

  it.each([
    ["missing", async (file: string) => rm(file)],
    [
      "altered",
      async (file: string) => {
        const data = await readFile(file);
        const at = data.length - 3;
        data.writeUInt8(data.readUInt8(at) ^ 1, at);
        await writeFile(file, data);
      },
    ],
    ["cut short", async (file: string) => writeFile(file, (await readFile(file)).subarray(0, -7))],
  ])("is told and leaves nothing: a file that is %s", async (_, damage) => {
    const { id, key } = await suspended();
    const all = await files();
    let told = 0;
    for (const file of all) {
      const whole = await readFile(file);
      await damage(file);
      // The template's packs are not read, because this host has an equal template.
      const failed = await bring(id, key).then(
        () => "",
        (error: Error) => error.message,
      );
      if (failed !== "") {
        told += 1;
        expect(failed).toMatch(/image in storage is damaged|no longer in storage/);
        await expectNothingThere();
      }
      await writeFile(file, whole);
      await onThere.destroyMachine({ sandboxId: id });
    }
    // Manifests of disk and memory, the pack of each, and the description.
    expect(told).toBe(5);
    await bring(id, key);
    await expectSame(id);
  });
});

describe("faults of an import", { timeout: 60_000 }, () => {
  const effectsOf = async (): Promise<number> => {
    const { id, key } = await suspended();
    there.countEffects();
    await bring(id, key);
    const count = there.effectCount;
    await onThere.destroyMachine({ sandboxId: id });
    return count;
  };

  it.each(["before", "after"] as FaultMode[])(
    "each effect failing %s it took effect leaves nothing",
    async (mode) => {
      const effects = await effectsOf();
      const { id, key } = await suspended();
      for (let at = 0; at < effects; at += 1) {
        there.fault(at, mode);
        const failed = await bring(id, key).then(
          () => false,
          () => true,
        );
        there.countEffects();
        if (failed) await expectNothingThere();
        expect((await bring(id, key)).phase).toBe(MachinePhase.SUSPENDED);
        await expectSame(id);
        await onThere.destroyMachine({ sandboxId: id });
      }
    },
  );

  it.each(["kill-before", "kill-after"] as FaultMode[])(
    "at each effect, %s: the next start finishes or undoes it",
    async (mode) => {
      const effects = await effectsOf();
      const { id, key } = await suspended();
      for (let at = 0; at < effects; at += 1) {
        const { killed } = there;
        there.fault(at, mode);
        await Promise.race([killed, bring(id, key).catch(() => undefined)]);
        onThere = await restart(there);
        const { machines } = await onThere.listMachines({});
        expect(await there.orphans(new Set(machines.map(({ sandboxId }) => sandboxId)))).toEqual([]);
        expect((await bring(id, key)).phase).toBe(MachinePhase.SUSPENDED);
        await expectSame(id);
        await onThere.destroyMachine({ sandboxId: id });
      }
    },
  );

  it("a reboot at each effect leaves the whole machine or none", async () => {
    const effects = await effectsOf();
    const { id, key } = await suspended();
    for (let at = 0; at < effects; at += 1) {
      const { killed } = there;
      there.fault(at, "kill-after");
      await Promise.race([killed, bring(id, key).catch(() => undefined)]);
      await there.reboot();
      onThere = await restart(there);
      const { machines } = await onThere.listMachines({});
      for (const machine of machines) expect(machine.phase).toBe(MachinePhase.SUSPENDED);
      await bring(id, key);
      await expectSame(id);
      await onThere.destroyMachine({ sandboxId: id });
    }
  });
});

it("a host of no cluster imports nothing", async () => {
  const alone = await FakeWorld.open();
  const client = await restart(alone);
  const asked = client.importMachine({ spec: spec(newSandboxId(randomBytes)), imageKey: "k" });
  await expect(asked).rejects.toThrow(/in no cluster/);
  await alone.close();
});
