import { createClient, createRouterTransport } from "@connectrpc/connect";
import { RouteService } from "@cloche/protocol/edge";
import { MachinePhase } from "@cloche/protocol/host";
import { newSandboxId } from "@cloche/protocol";
import { randomBytes } from "node:crypto";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { quiet } from "../testing/fake-clock.ts";
import { type FleetGateway, FleetWorld } from "../testing/fleet-world.ts";

const R = "SANDBOX_STATE_RUNNING";
const S = "SANDBOX_STATE_SUSPENDED";

let world: FleetWorld;
let a: FleetGateway;
beforeEach(async () => {
  world = await FleetWorld.open(["h-1", "h-2", "h-3"]);
  a = await world.start("a");
});
afterEach(() => world.close());

const record = async (id: string) => {
  const found = await world.database.sandboxes.get(id);
  if (found === undefined) throw new Error("there is no such record");
  return found;
};
const create = async (body: object = {}) => {
  const answer = await a.call("CreateSandbox", body);
  expect(answer).toMatchObject({ status: 200 });
  return await record(answer.body.sandbox.id);
};
const stateOf = async (id: string) => (await record(id)).state;
const route = async (gateway: FleetGateway, id: string) => {
  const client = createClient(
    RouteService,
    createRouterTransport(({ service }) => service(RouteService, gateway.gateway.routeService)),
  );
  for await (const event of client.watchRoutes({})) if (event.route?.sandboxId === id) return event.route;
  return undefined;
};

describe("hosts of a cluster", () => {
  it("each make the machines that their records name, and are asked for no others", async () => {
    const made = [];
    for (let index = 0; index < 6; index += 1) made.push(await create());
    for (const { id, hostId } of made) {
      const having = [...world.hosts].filter(([, host]) => host.machines.has(id)).map(([name]) => name);
      expect(having).toEqual([hostId]);
    }
    expect(new Set(made.map(({ hostId }) => hostId)).size).toBeGreaterThan(1);
    const [one] = made;
    if (one === undefined) throw new Error("nothing was made");
    await a.call("SuspendSandbox", { id: one.id });
    await expect.poll(() => stateOf(one.id)).toBe(S);
    expect(world.host(one.hostId).phase(one.id)).toBe(MachinePhase.SUSPENDED);
    expect((await a.call("GetSandboxMetrics", { id: one.id })).status).toBe(200);
    await a.call("DeleteSandbox", { id: one.id });
    await expect.poll(() => world.host(one.hostId).machines.has(one.id)).toBe(false);
  });

  it("are told in routes by their address", async () => {
    const { id, hostId } = await create();
    expect(await route(a, id)).toMatchObject({ hostId, hostAddress: `${hostId}.example:7090` });
    await world.register(hostId, { address: "elsewhere.example:1" });
    await world.clock.advance(2_000);
    expect(await route(a, id)).toMatchObject({ hostAddress: "elsewhere.example:1", busy: false });
    expect(world.connections.filter((one) => one.startsWith(`${hostId} `))).toEqual([
      `${hostId} elsewhere.example:1`,
    ]);
  });

  it("that cannot be reached hold up nobody else", async () => {
    const { id, hostId } = await create();
    world.host(hostId).isCutOff = true;
    world.host(hostId).breakStreams();
    await world.lose(["h-1", "h-2", "h-3"].find((one) => one !== hostId) ?? "");
    await a.gateway.ready();
    const suspended = a.call("SuspendSandbox", { id });
    await suspended;
    const other = await create();
    expect(other.hostId).not.toBe(hostId);
    await world.clock.advance(60_000);
    expect(await stateOf(id)).toBe("SANDBOX_STATE_SUSPENDING");
    world.host(hostId).isCutOff = false;
    await world.clock.advance(31_000);
    expect(await stateOf(id)).toBe(S);
  });

  it("that are all away leave a gateway ready that has served", async () => {
    const { id } = await create();
    await a.gateway.ready();
    for (const host of world.hosts.values()) {
      host.isCutOff = true;
      host.breakStreams();
    }
    await world.clock.advance(6_000);
    await a.gateway.ready();
    expect((await a.call("GetSandbox", { id })).status).toBe(200);
  });

  it("get the public keys each, when they come too", async () => {
    const late = await world.register("h-4");
    await world.clock.advance(2_000);
    for (const host of world.hosts.values()) expect(host.keys.kids).toEqual(["test-key"]);
    expect(late.keys.kids).toEqual(["test-key"]);
  });

  it("are none at first: the gateway is ready, and says that it has none", async () => {
    const empty = await FleetWorld.open([]);
    const gateway = await empty.start("a");
    await gateway.gateway.ready();
    const answer = await gateway.call("CreateSandbox");
    expect([answer.status, answer.body.code, answer.headers.get("retry-after")]).toEqual([
      503,
      "unavailable",
      "5",
    ]);
    await empty.close();
  });
});

describe("calls of a host", () => {
  it("carry its generation, which is read again when the host refuses it", async () => {
    const { id, hostId } = await create();
    // This gateway has not read the host's new row yet.
    await world.register(hostId);
    expect((await a.call("SuspendSandbox", { id })).status).toBe(200);
    await world.clock.advance(500);
    await expect.poll(() => stateOf(id)).toBe(S);
    expect(world.host(hostId).generation).toBe(2);
  });

  it("of operations carry a number that grows from one to the next", async () => {
    const { id, hostId } = await create();
    const seen = [world.host(hostId).fences.get(id)];
    for (const [method, state] of [
      ["SuspendSandbox", S],
      ["ResumeSandbox", R],
    ] as const) {
      await a.call(method, { id });
      await expect.poll(() => stateOf(id)).toBe(state);
      seen.push(world.host(hostId).fences.get(id));
    }
    expect(seen.map((one) => one?.number)).toEqual([1, 3, 5]);
    expect(seen.map((one) => one?.attempt)).toEqual([1, 1, 1]);
  });

  it("that the host refuses as too old end no sandbox", async () => {
    const { id, hostId } = await create();
    world.host(hostId).fences.set(id, { number: 99, attempt: 1 });
    await a.call("SuspendSandbox", { id });
    await world.clock.advance(5_000);
    expect(await stateOf(id)).toBe("SANDBOX_STATE_SUSPENDING");
    world.host(hostId).fences.delete(id);
    await world.clock.advance(31_000);
    expect(await stateOf(id)).toBe(S);
  });
});

describe("a host that is watched", () => {
  it("is compared by one gateway at a time, and by the other when that one is gone", async () => {
    const { id, hostId } = await create();
    const b = await world.start("b");
    const lists = () => world.host(hostId).calls.filter((call) => call === "listMachines").length;
    const before = lists();
    await world.clock.advance(60_000);
    expect(lists() - before).toBe(1);
    await a.gateway.close();
    world.host(hostId).lose(id);
    await world.clock.advance(5_000);
    await b.gateway.settled();
    expect(await stateOf(id)).toBe("SANDBOX_STATE_ERROR");
  });

  it("is one of those that a gateway gives away to another that has come", async () => {
    for (let index = 4; index <= 12; index += 1) await world.register(`h-${index}`);
    await world.clock.advance(12_000);
    const b = await world.start("b");
    await world.clock.advance(20_000);
    const watched = async (owner: string) => await world.database.hosts.renewWatches(owner, 15_000);
    const [ofA, ofB] = [await watched("a"), await watched("b")];
    expect(new Set([...ofA, ...ofB]).size).toBe(12);
    expect(ofA.length + ofB.length).toBe(12);
    expect(Math.min(ofA.length, ofB.length)).toBeGreaterThanOrEqual(4);
    // A gateway does not watch a host that it cannot reach.
    await b.gateway.close();
    world.host("h-5").isCutOff = true;
    world.host("h-5").breakStreams();
    await world.clock.advance(20_000);
    expect((await watched("a")).toSorted()).toEqual(
      [...world.hosts.keys()].filter((id) => id !== "h-5").toSorted(),
    );
  });

  it("loses copies of machines whose records name another host", async () => {
    const { id, hostId } = await create();
    const other = ["h-1", "h-2"].find((one) => one !== hostId) ?? "";
    world.host(other).add({ sandboxId: id });
    await quiet();
    await a.gateway.settled();
    expect(world.host(other).machines.has(id)).toBe(false);
    expect(world.host(hostId).phase(id)).toBe(MachinePhase.RUNNING);
    expect(await stateOf(id)).toBe(R);
  });

  it("tells its audit events once", async () => {
    const b = await world.start("b");
    const { id, hostId, teamId } = await create();
    world.host(hostId).tellAudit({ teamId, subject: id, action: "checkpoint.create", atUnixMs: 1n });
    await quiet();
    const entries = await world.database.audit.list({ teamId, subject: id, limit: 20 });
    expect(entries.filter(({ action }) => action === "checkpoint.create")).toHaveLength(1);
    await b.gateway.close();
  });

  it("tells them to the gateway that watches it next, where the one before is gone", async () => {
    const b = await world.start("b");
    const { id, hostId, teamId } = await create();
    const notify = async (action: string) => {
      world.host(hostId).tellAudit({ teamId, subject: id, action, atUnixMs: 1n });
      await quiet();
    };
    await notify("checkpoint.create");
    await a.gateway.close();
    await notify("checkpoint.restore");
    await world.clock.advance(5_000);
    await notify("checkpoint.delete");
    const entries = await world.database.audit.list({ teamId, subject: id, limit: 20 });
    const told = entries.map(({ action }) => action).filter((action) => action.startsWith("checkpoint."));
    expect(told.toSorted()).toEqual(["checkpoint.create", "checkpoint.delete", "checkpoint.restore"]);
    await b.gateway.close();
  });
});

describe("a host that was lost and is back", () => {
  it("is told which machines are its own or unknown, after those of removed sandboxes are gone", async () => {
    const { id, hostId } = await create();
    const gone = newSandboxId(randomBytes);
    await world.database.sandboxes.noteRemoved(gone, 1);
    // Of a database that is newer than this one.
    const unknown = newSandboxId(randomBytes);
    await world.lose(hostId);
    expect((await a.call("GetSandboxMetrics", { id })).status).toBe(503);
    expect(await route(a, id)).toMatchObject({ state: "SANDBOX_STATE_ERROR", hostAddress: "" });
    const host = world.host(hostId);
    host.add({ sandboxId: gone });
    host.add({ sandboxId: unknown });
    host.isCutOff = false;
    await world.register(hostId);
    expect(await world.row(hostId)).toMatchObject({ generation: 3, awaitsAdmission: true });
    // The host still awaits admission if it registers again before that.
    await world.register(hostId);
    expect(await world.row(hostId)).toMatchObject({ generation: 4, awaitsAdmission: true });
    await world.clock.advance(8_000);
    await a.gateway.settled();
    expect(host.admitted).toEqual([[id, unknown].toSorted()]);
    expect(host.machines.has(gone)).toBe(false);
    expect(host.machines.has(unknown)).toBe(true);
    expect(await world.row(hostId)).toMatchObject({ awaitsAdmission: false });
    expect(await stateOf(id)).toBe(R);
  });

  it("is not needed to delete what it had", async () => {
    const { id, hostId } = await create();
    await world.lose(hostId);
    expect((await a.call("DeleteSandbox", { id })).status).toBe(200);
    await expect.poll(() => world.database.sandboxes.get(id)).toBeUndefined();
    const host = world.host(hostId);
    host.isCutOff = false;
    await world.register(hostId);
    await world.clock.advance(8_000);
    await a.gateway.settled();
    expect([host.machines.size, host.admitted]).toEqual([0, [[]]]);
  });
});

describe("a new machine", () => {
  const all = ["h-1", "h-2", "h-3"];
  const capacityMb = 8_192;

  it("goes where the database has room, whatever this gateway thinks", async () => {
    await world.take("h-1", capacityMb);
    await world.take("h-3", capacityMb - 512);
    for (let index = 0; index < 8; index += 1) expect((await create()).hostId).toBe("h-2");
    expect((await world.row("h-2")).reservedMemoryMb).toBe(capacityMb);
  });

  it("is refused with Retry-After where there is none, counted, and made once there is", async () => {
    const { id, hostId } = await create();
    for (const host of all) await world.take(host, host === hostId ? capacityMb - 1_024 : capacityMb);
    for (let index = 1; index <= 2; index += 1) {
      const refused = await a.call("CreateSandbox");
      expect([refused.status, refused.body.code, refused.headers.get("retry-after")]).toEqual([
        503,
        "unavailable",
        "5",
      ]);
    }
    await world.clock.advance(2_000);
    const metrics = await a.metrics.text();
    expect(metrics).toContain("cloche_placement_waits_total 2\n");
    expect(metrics).toContain(`cloche_host_reserved_share{host="${hostId}",cpu_class="",state="open"} 1\n`);
    await a.call("SuspendSandbox", { id });
    await expect.poll(() => stateOf(id)).toBe(S);
    await world.clock.advance(2_000);
    expect((await create()).hostId).toBe(hostId);
    // Another sandbox has taken the memory on its host.
    const resumed = await a.call("ResumeSandbox", { id });
    expect([resumed.status, await stateOf(id)]).toEqual([503, S]);
  });

  it("of a fork begins on the host of its source, or is refused", async () => {
    const { id, hostId } = await create();
    const fork = (count: number) => a.call("ForkSandbox", { source_sandbox_id: id, count });
    const made = (await fork(3)).body.sandboxes as { id: string }[];
    for (const one of made) expect((await record(one.id)).hostId).toBe(hostId);
    expect([...world.host(hostId).forkGroups]).toEqual([]);
    const refused = await fork(5);
    expect([refused.status, refused.body.message, refused.headers.get("retry-after")]).toEqual([
      503,
      expect.stringMatching(/^source_sandbox_id: its host has no room for a fork now/),
      "5",
    ]);
    expect((await fork(4)).status).toBe(200);
  });

  it("is one that was made ahead where a host has such", async () => {
    const ready = { sandboxId: newSandboxId(randomBytes), name: "made-ahead" };
    world.host("h-2").offer([ready]);
    await quiet();
    expect(await create()).toMatchObject({ id: ready.sandboxId, name: "made-ahead", hostId: "h-2" });
  });

  it("goes to no host that is cordoned", async () => {
    for (const host of ["h-1", "h-3"]) await world.database.hosts.setState(host, "cordoned");
    for (let index = 0; index < 4; index += 1) expect((await create()).hostId).toBe("h-2");
  });
});
