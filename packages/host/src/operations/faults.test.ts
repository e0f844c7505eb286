import { randomBytes } from "node:crypto";
import { readFile, writeFile } from "node:fs/promises";
import { createClient, createRouterTransport } from "@connectrpc/connect";
import { systemClock } from "@cloche/base";
import { newSandboxId } from "@cloche/protocol";
import { HostService, MachinePhase } from "@cloche/protocol/host";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { DataPlaneCaller, testKeys } from "../testing/data-plane-caller.ts";
import { type FaultMode, FakeWorld } from "../testing/fake-world.ts";

type Client = ReturnType<typeof createClient<typeof HostService>>;
type Operation = (client: Client, id: string, other: string) => Promise<unknown>;

/** Names of machines made ahead, which are offered together with their ids. */
const names = new Map<string, string>();
const spec = (sandboxId: string) => ({
  sandboxId,
  teamId: "team-t",
  name: names.get(sandboxId) ?? "t",
  template: "base",
  cpus: 1,
  memoryMb: 256,
  diskMb: 1_024,
});

/** `prepare`: operations that bring machine `id` into the state before `run`. `other`: a second id, for a fork. */
interface Case {
  prepare: Operation[];
  run: Operation;
  /** What the driver keeps ready. */
  keeps?: "machine" | "disk";
  /** The machine made ahead is already assigned to `id`. */
  assigned?: boolean;
  creates?: "id" | "other";
  /** The operation ends the machine's processes, so a failed one may have ended them too. */
  ends?: true;
}
const operations: Record<string, Case> = {
  create: { prepare: [], run: create, creates: "id" },
  "create from a machine made ahead": { prepare: [], run: create, creates: "id", keeps: "machine" },
  "create from a machine made ahead and assigned": {
    prepare: [],
    run: create,
    creates: "id",
    assigned: true,
  },
  "create on a disk made ahead": { prepare: [], run: create, creates: "id", keeps: "disk" },
  fork: { prepare: [create], run: fork, creates: "other" },
  "fork of a suspended one": { prepare: [create, suspend], run: fork, creates: "other" },
  "fork in a group": { prepare: [create], run: forkInGroup, creates: "other" },
  "fork in a group of a suspended one": { prepare: [create, suspend], run: forkInGroup, creates: "other" },
  "fork of one suspended without its memory": {
    prepare: [create, suspendToDisk],
    run: forkFromDisk,
    creates: "other",
  },
  suspend: { prepare: [create], run: suspend },
  "suspend without memory": { prepare: [create], run: suspendToDisk, ends: true },
  "resume of one suspended without its memory": {
    prepare: [create, suspendToDisk],
    run: resumeFromDisk,
    ends: true,
  },
  resume: { prepare: [create, suspend], run: resume },
  "resume without its memory": { prepare: [create, suspend, loseImages], run: resumeWithoutMemory },
  destroy: { prepare: [create], run: destroy },
  "destroy of a suspended one": { prepare: [create, suspend], run: destroy },
  checkpoint: { prepare: [create], run: checkpoint },
  restore: { prepare: [create, checkpoint, change], run: restore },
};

async function create(client: Client, id: string): Promise<unknown> {
  return client.createMachine({ spec: spec(id) });
}
async function fork(client: Client, id: string, other: string): Promise<unknown> {
  return client.forkMachine({ sourceSandboxId: id, spec: spec(other) });
}
const group = "0123456789abcdef0123";
async function forkInGroup(client: Client, id: string, other: string): Promise<unknown> {
  return client.forkMachine({ sourceSandboxId: id, spec: spec(other), group });
}
async function suspend(client: Client, sandboxId: string): Promise<unknown> {
  return client.suspendMachine({ sandboxId });
}
/** Like the gateway: first starts a machine that a failure left stopped. */
async function suspendToDisk(client: Client, sandboxId: string): Promise<unknown> {
  const { phase } = await client.getMachine({ sandboxId });
  if (phase === MachinePhase.STOPPED) await create(client, sandboxId);
  const machine = world.machines.get(sandboxId);
  if (machine) await writeFile(machine.disk, "mine");
  return client.suspendMachine({ sandboxId, diskOnly: true });
}
async function resumeFromDisk(client: Client, sandboxId: string): Promise<unknown> {
  const { phase } = await client.getMachine({ sandboxId });
  if (phase === MachinePhase.STOPPED) await create(client, sandboxId);
  else await client.resumeMachine({ sandboxId });
  const { errorMessage } = await client.getMachine({ sandboxId });
  expect(errorMessage).toBe(
    "started from its disk, without its memory: it was suspended without it; services started: none",
  );
  expect(await readFile(world.machines.get(sandboxId)?.disk ?? "", "utf8")).toBe("mine");
  return undefined;
}
async function forkFromDisk(client: Client, id: string, other: string): Promise<unknown> {
  await fork(client, id, other);
  const { errorMessage } = await client.getMachine({ sandboxId: other });
  expect(errorMessage).toBe(
    "started from its disk, without its memory: its source was suspended without it; services started: none",
  );
  expect((await client.getMachine({ sandboxId: id })).phase).toBe(MachinePhase.SUSPENDED);
  expect(await readFile(world.machines.get(other)?.disk ?? "", "utf8")).toBe("mine");
  return undefined;
}
async function resume(client: Client, sandboxId: string): Promise<unknown> {
  return client.resumeMachine({ sandboxId });
}
async function loseImages(): Promise<unknown> {
  world.imagesAreLost = true;
  return undefined;
}
/** Like the gateway. After any fault or kill the error message names the lost memory. */
async function resumeWithoutMemory(client: Client, sandboxId: string): Promise<unknown> {
  const { phase } = await client.getMachine({ sandboxId });
  const isStopped = phase === MachinePhase.STOPPED;
  await (isStopped ? create(client, sandboxId) : client.resumeMachine({ sandboxId }));
  const { errorMessage } = await client.getMachine({ sandboxId });
  expect(errorMessage).toBe(
    "started from its disk, without its memory: the memory image is damaged; services started: none",
  );
  return undefined;
}
async function destroy(client: Client, sandboxId: string): Promise<unknown> {
  return client.destroyMachine({ sandboxId });
}

let caller: DataPlaneCaller;
let world: FakeWorld;

async function ask(id: string, path: string, body: object = {}): Promise<unknown> {
  const answer = await caller.call(id, "POST", path, body);
  if (answer.status !== 200) throw new Error(`${path}: ${answer.status} ${JSON.stringify(answer.body)}`);
  return answer.body;
}
async function checkpoint(_client: Client, id: string): Promise<unknown> {
  return ask(id, "/v1/checkpoint", { name: "c" });
}
/** Changes that a restore must undo: the disk's content, and a running service. */
async function change(_client: Client, id: string): Promise<unknown> {
  const machine = world.machines.get(id);
  machine?.memory.services.push("late");
  return writeFile(machine?.disk ?? "", "changed");
}
async function restore(_client: Client, id: string): Promise<unknown> {
  const { body } = await caller.call(id, "GET", "/v1/checkpoint/list");
  const answer = await ask(id, "/v1/restore", { checkpoint_id: body.checkpoints[0].id });
  expect(await readFile(world.machines.get(id)?.disk ?? "", "utf8")).toBe("fresh");
  return answer;
}

describe("faults of the host's operations", { timeout: 180_000 }, () => {
  let client: Client;
  const connect = (): void => {
    const { host } = world;
    client = createClient(
      HostService,
      createRouterTransport((router) => {
        router.service(HostService, host.service);
      }),
    );
  };
  beforeEach(async () => {
    world = await FakeWorld.open();
    await world.start();
    connect();
    await client.setVerificationKeys(testKeys);
    caller = await DataPlaneCaller.open(() => world.host);
  });
  afterEach(async () => {
    caller.close();
    await world.close();
  });

  /** Every record is true: RUNNING machines run, are assigned and have their disk; the others do not run. */
  const expectTruth = async (): Promise<void> => {
    // As the gateway does when no fork of the group is under way.
    await client.endForkGroup({ group });
    const { machines } = await client.listMachines({});
    for (const { sandboxId, phase, agentPort } of machines) {
      const machine = world.machines.get(sandboxId);
      if (phase === MachinePhase.RUNNING) {
        expect(machine, `${sandboxId} runs`).toBeDefined();
        expect(machine).toMatchObject({ paused: false, port: agentPort });
        expect(machine?.memory).toMatchObject({ assignedTo: sandboxId, attached: true });
        expect(await readFile(machine?.disk ?? "", "utf8")).toBeTruthy();
      } else {
        expect([MachinePhase.SUSPENDED, MachinePhase.STOPPED]).toContain(phase);
        expect(machine, `${sandboxId} does not run`).toBeUndefined();
      }
    }
    expect(await world.orphans(new Set(machines.map((one) => one.sandboxId)))).toEqual([]);
  };
  /** Cold starts go on after a start has answered. */
  const settled = async (): Promise<void> => {
    const underWay = async (): Promise<number> => {
      const { machines } = await client.listMachines({});
      return machines.filter(({ phase }) => [MachinePhase.STARTING, MachinePhase.STOPPED].includes(phase))
        .length;
    };
    await expect.poll(underWay, { timeout: 5_000, interval: 5 }).toBe(0);
  };
  /** So that each round begins without machines of the one before. */
  const clear = async (): Promise<void> => {
    const { machines } = await client.listMachines({});
    await Promise.all(machines.map(({ sandboxId }) => destroy(client, sandboxId)));
  };
  const diskOf = async (id: string): Promise<string> => {
    const machine = world.machines.get(id);
    return machine ? readFile(machine.disk, "utf8") : "";
  };
  const makeAhead = async (): Promise<string> => {
    const { sandboxId, name } = await world.makeAhead();
    names.set(sandboxId, name);
    return sandboxId;
  };
  /** Marks the machine's memory, to see whether it was interrupted. */
  const mark = (id: string): void => {
    const machine = world.machines.get(id);
    if (machine) machine.memory.counter = 42;
  };

  for (const [name, { prepare, run, creates, keeps, assigned = false, ends = false }] of Object.entries(
    operations,
  )) {
    /** The operation's effects, counted in a run without faults. */
    const prepared = async (): Promise<{ id: string; other: string; bystander: string }> => {
      const other = newSandboxId(randomBytes);
      const bystander = newSandboxId(randomBytes);
      await create(client, bystander);
      const id = assigned ? await makeAhead() : newSandboxId(randomBytes);
      world.keeps = keeps;
      for (const step of prepare) {
        await step(client, id, other);
        mark(id);
      }
      mark(bystander);
      return { id, other, bystander };
    };
    const effectsOf = async (): Promise<number> => {
      const { id, other } = await prepared();
      world.countEffects();
      await run(client, id, other);
      return world.effectCount;
    };

    it(`${name}: each effect failing, before and after it took effect, leaves no trace; a repeat succeeds`, async () => {
      const effects = await effectsOf();
      expect(effects).toBeGreaterThan(0);
      for (const mode of ["before", "after"] as FaultMode[]) {
        for (let at = 0; at < effects; at += 1) {
          const { id, other, bystander } = await prepared();
          const before = world.machines.has(id);
          world.fault(at, mode);
          const disk = await diskOf(id);
          const failed = await run(client, id, other).then(
            () => false,
            () => true,
          );
          world.countEffects();
          // A failed destroy has no undo; it is only repeated.
          if (!name.startsWith("destroy")) await expectTruth();
          expect(world.machines.get(bystander)?.memory.counter).toBe(42);
          // A machine that ran before a failed operation runs on, uninterrupted.
          if (failed && before && name !== "destroy" && !ends)
            expect(world.machines.get(id)?.memory.counter).toBe(42);
          if (failed && name === "restore") {
            expect(await diskOf(id)).toBe(disk);
            expect(world.machines.get(id)?.memory.services).toEqual(["late"]);
          }
          if (failed && creates) {
            const { machines } = await client.listMachines({});
            expect(machines.map((one) => one.sandboxId)).not.toContain(creates === "id" ? id : other);
          }
          await run(client, id, other);
          await expectTruth();
          await clear();
        }
      }
    });

    it(`${name}: killed at each effect, the next start finishes or undoes it`, async () => {
      const effects = await effectsOf();
      for (const mode of ["kill-before", "kill-after"] as FaultMode[]) {
        for (let at = 0; at < effects; at += 1) {
          const { id, other, bystander } = await prepared();
          const before = world.machines.get(id);
          const { killed } = world;
          world.fault(at, mode);
          await Promise.race([killed, run(client, id, other).catch(() => undefined)]);
          await world.start();
          connect();
          await settled();
          await expectTruth();
          expect(world.machines.get(bystander)?.memory.counter).toBe(42);
          const after = world.machines.get(id);
          if (before && after && name !== "resume" && !ends) expect(after.memory.counter).toBe(42);
          await run(client, id, other);
          await expectTruth();
          await clear();
        }
      }
    });

    it(`${name}: a reboot at each effect leaves disks and memory images intact`, async () => {
      const effects = await effectsOf();
      for (let at = 0; at < effects; at += 1) {
        const { id, other, bystander } = await prepared();
        const machine = world.machines.get(id);
        if (machine) await writeFile(machine.disk, "mine");
        const { killed } = world;
        world.fault(at, "kill-after");
        await Promise.race([killed, run(client, id, other).catch(() => undefined)]);
        await world.reboot();
        await world.start();
        connect();
        await settled();
        await expectTruth();
        expect(world.machines.has(bystander)).toBe(true);
        if (machine && world.machines.has(id)) {
          // A restore that was under way is either undone or complete.
          const disks = name === "restore" ? ["mine", "fresh"] : ["mine"];
          expect(disks).toContain(await readFile(world.machines.get(id)?.disk ?? "", "utf8"));
        }
        await clear();
      }
    });
  }

  describe("an undo that fails", () => {
    let id: string;
    const phase = async (): Promise<MachinePhase> => (await client.getMachine({ sandboxId: id })).phase;
    const undoWaitsMs = [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000];
    const waits: number[] = [];
    beforeEach(async () => {
      await world.host.stop({ suspend: false });
      waits.length = 0;
      // Shorten the waits between tries of an undo. Watches that sleep for as long are shortened and noted too.
      const sleep = async (ms: number, signal?: AbortSignal): Promise<void> => {
        if (!undoWaitsMs.includes(ms) || world.failing.size === 0) return systemClock.sleep(ms, signal);
        waits.push(ms);
        await systemClock.sleep(50, signal);
      };
      world.clock = { ...systemClock, sleep };
      await world.start();
      connect();
      id = newSandboxId(randomBytes);
      await create(client, id);
      mark(id);
    });

    it("is tried again, and the machine is suspended as it was", async () => {
      await suspend(client, id);
      world.failing.add("agent Assign").add("driver stopMachine");
      const answer = resume(client, id);
      await expect.poll(() => waits.length).toBeGreaterThan(2);
      world.failing.clear();
      await expect(answer).rejects.toThrow();
      expect(await phase()).toBe(MachinePhase.SUSPENDED);
      await expectTruth();
      await resume(client, id);
      expect(world.machines.get(id)?.memory.counter).toBe(42);
    });

    it("and goes on to fail leaves a resume failed, not under way; the next start undoes it", async () => {
      await suspend(client, id);
      world.failing.add("agent Assign").add("driver stopMachine");
      await expect(resume(client, id)).rejects.toThrow(/could not be undone/);
      expect([...new Set(waits)].toSorted((a, b) => a - b)).toEqual(undoWaitsMs);
      expect(await phase()).toBe(MachinePhase.FAILED);
      world.failing.clear();
      await world.start();
      connect();
      expect(await phase()).toBe(MachinePhase.SUSPENDED);
      await resume(client, id);
      expect(world.machines.get(id)?.memory.counter).toBe(42);
      await expectTruth();
    });

    it("and goes on to fail is undone by the next resume, which then succeeds", async () => {
      await suspend(client, id);
      world.failing.add("agent Assign").add("driver stopMachine");
      await expect(resume(client, id)).rejects.toThrow(/could not be undone/);
      expect(await phase()).toBe(MachinePhase.FAILED);
      await expect(resume(client, id)).rejects.toThrow();
      expect(await phase()).toBe(MachinePhase.FAILED);
      world.failing.clear();
      await resume(client, id);
      expect(await phase()).toBe(MachinePhase.RUNNING);
      expect(world.machines.get(id)?.memory.counter).toBe(42);
      await expectTruth();
    });

    it("and goes on to fail leaves a suspend stopped: it starts from its disk, which is told", async () => {
      world.failing.add("driver snapshot").add("driver unblock");
      await expect(suspend(client, id)).rejects.toThrow();
      world.failing.clear();
      expect(await phase()).toBe(MachinePhase.STOPPED);
      await create(client, id);
      expect((await client.getMachine({ sandboxId: id })).errorMessage).toMatch(
        /without its memory: a suspend/,
      );
      await expectTruth();
    });

    it("keeps no deletion waiting", async () => {
      await suspend(client, id);
      world.failing.add("agent Assign").add("driver stopMachine");
      await expect(resume(client, id)).rejects.toThrow(/could not be undone/);
      world.failing.clear();
      await destroy(client, id);
      await expectTruth();
    });
  });

  it("memory that could not be saved at a stop is told after the next start", async () => {
    const id = newSandboxId(randomBytes);
    await create(client, id);
    world.countEffects();
    const at = world.effects.length;
    await suspend(client, id);
    const save = world.effects.slice(at).indexOf("driver snapshot");
    await resume(client, id);
    world.fault(save, "before");
    await world.host.stop({ suspend: true });
    await world.start();
    connect();
    await settled();
    const { errorMessage } = await client.getMachine({ sandboxId: id });
    expect(errorMessage).toMatch(
      /^started from its disk, without its memory: it could not be saved when the service stopped.*; services started: none$/,
    );
    await expectTruth();
  });

  it("forks of a group are clones of one instant, whatever happens between them", async () => {
    const [id, ...others] = Array.from({ length: 5 }, () => newSandboxId(randomBytes));
    const [first, second, third, fourth] = others as [string, string, string, string];
    const snapshots = (): number => world.effects.filter((name) => name === "driver snapshot").length;
    const counterOf = (one: string): number | undefined => world.machines.get(one)?.memory.counter;
    const source = id as string;
    const interrupt = async (): Promise<void> => {
      await world.start();
      connect();
      await settled();
    };
    await create(client, source);
    mark(source);
    await forkInGroup(client, source, first);
    const machine = world.machines.get(source);
    if (machine) machine.memory.counter = 43;
    await forkInGroup(client, source, second);
    await interrupt();
    await destroy(client, source);
    await forkInGroup(client, source, third);
    expect([first, second, third].map(counterOf)).toEqual([42, 42, 42]);
    expect(snapshots()).toBe(1);
    await client.endForkGroup({ group });
    await expect(forkInGroup(client, source, fourth)).rejects.toThrow(/there is no machine/);
    await expectTruth();
    for (const wrong of ["x", "../../../machines/000", "0123456789ABCDEF0123"])
      await expect(
        client.forkMachine({ sourceSandboxId: first, spec: spec(fourth), group: wrong }),
      ).rejects.toThrow(/group is .*20 hexadecimal digits/);
  });

  it("what was assigned ahead is not assigned again, unless there is something else to tell", async () => {
    const assigns = (): number => world.effects.filter((effect) => effect === "agent Assign").length;
    const id = await makeAhead();
    expect(assigns()).toBe(1);
    await create(client, id);
    expect(assigns()).toBe(1);
    const others = [{ name: "mine" }, { env: { A: "b" } }, {}];
    for (const [index, other] of others.entries()) {
      const sandboxId = await makeAhead();
      // For the last one the keys changed after its assignment.
      if (index === 2) await client.setVerificationKeys({ ...testKeys, issuer: "another" });
      await client.createMachine({ spec: { ...spec(sandboxId), ...other } });
      expect(assigns()).toBe(1 + 2 * (index + 1));
    }
    await expectTruth();
  });

  it("an operation of a machine begins when the one before it has ended", async () => {
    const id = newSandboxId(randomBytes);
    await create(client, id);
    world.effects.length = 0;
    await Promise.all([suspend(client, id), destroy(client, id)]);
    const ends = world.effects.filter((name) => name.startsWith("driver ") && name !== "driver unblock");
    expect(ends).toEqual(["driver snapshot", "driver stopMachine", "driver destroy"]);
    await expectTruth();
  });

  it("operations of one machine asked for together end in a state that is true", async () => {
    for (let round = 0; round < 10; round += 1) {
      const id = newSandboxId(randomBytes);
      await create(client, id);
      const others = Array.from({ length: 3 }, () => newSandboxId(randomBytes));
      await Promise.allSettled([
        suspend(client, id),
        ...others.map((other) => fork(client, id, other)),
        resume(client, id),
        suspend(client, id),
        resume(client, id),
        resume(client, id),
        round % 2 === 0 ? destroy(client, id) : create(client, id),
      ]);
      await expectTruth();
      expect(world.machines.has(id)).toBe(round % 2 !== 0);
    }
  });

  it("a suspended source is cloned out of its image, is not woken, and resumes as if nothing had been", async () => {
    const id = newSandboxId(randomBytes);
    await create(client, id);
    await suspend(client, id);
    world.effects.length = 0;
    const others = Array.from({ length: 3 }, () => newSandboxId(randomBytes));
    await Promise.all(others.map((other) => fork(client, id, other)));
    expect(world.effects).not.toContain("driver snapshot");
    expect(world.effects.filter((name) => name === "driver restore")).toHaveLength(3);
    expect(await client.getMachine({ sandboxId: id })).toMatchObject({ phase: MachinePhase.SUSPENDED });
    await destroy(client, others[0] ?? "");
    await resume(client, id);
    await expectTruth();
    await suspend(client, id);
    world.imagesAreLost = true;
    await expect(fork(client, id, newSandboxId(randomBytes))).rejects.toThrow(
      /memory cannot be cloned.*resume/,
    );
    world.imagesAreLost = false;
    await expectTruth();
  });

  it("ten forks at once share snapshots", async () => {
    const id = newSandboxId(randomBytes);
    await create(client, id);
    world.effects.length = 0;
    await Promise.all(Array.from({ length: 10 }, () => fork(client, id, newSandboxId(randomBytes))));
    expect(world.effects.filter((name) => name === "driver snapshot").length).toBeLessThanOrEqual(2);
    await expectTruth();
  });
});
