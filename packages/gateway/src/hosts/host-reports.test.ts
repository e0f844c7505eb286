import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { newSandboxId } from "@cloche/protocol";
import {
  AuditEventSchema,
  type Machine,
  MachinePhase,
  MachineSchema,
  MachineSpecSchema,
  StoredImageSchema,
} from "@cloche/protocol/host";
import { randomBytes } from "node:crypto";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { quiet } from "../testing/fake-clock.ts";
import { type FleetGateway, FleetWorld } from "../testing/fleet-world.ts";
import { reportedAudit, reportedMachine, ReportedMachines } from "./host-reports.ts";

const machine = (fields: MessageInitShape<typeof MachineSchema>) => create(MachineSchema, fields);

describe("a host whose computer was taken over", () => {
  let world: FleetWorld;
  let a: FleetGateway;
  beforeEach(async () => {
    world = await FleetWorld.open(["h-1", "h-2"]);
    a = await world.start("a");
  });
  afterEach(() => world.close());

  const made = async (hostId: string, body: object = {}) => {
    await world.database.hosts.setState(hostId === "h-1" ? "h-2" : "h-1", "cordoned");
    await world.clock.advance(2_000);
    const { body: answer } = await a.call("CreateSandbox", body);
    const record = await world.database.sandboxes.get(answer.sandbox.id);
    if (record?.hostId !== hostId) throw new Error("it was made elsewhere");
    return record;
  };
  /** What the host h-1 says of its own machine, or of that of another. */
  const says = async (id: string, fields: Partial<Machine>) => {
    const host = world.host("h-1");
    host.machines.set(id, { ...(host.machines.get(id) ?? machine({ sandboxId: id })), ...fields });
    host.set(id, fields.phase ?? MachinePhase.RUNNING);
    await quiet();
    await world.clock.advance(70_000);
    await a.gateway.settled();
  };
  const recordOf = async (id: string) => await world.database.sandboxes.get(id);

  it("changes nothing of the time that sandboxes of other hosts ran, nor suspends them", async () => {
    const { id } = await made("h-2", { idle_suspend_seconds: 3_600 });
    const before = await world.database.usage.open([id]);
    await world.clock.advance(60_000);
    world.host("h-1").add({ sandboxId: id });
    world.host("h-1").reportIdle(id);
    await says(id, { runningSinceUnixMs: BigInt(world.clock.nowMs()) });
    expect(await world.database.usage.open([id])).toEqual(before);
    expect((await recordOf(id))?.state).toBe("SANDBOX_STATE_RUNNING");
  });

  it("names no new sandbox as it likes", async () => {
    for (const hostId of ["h-1", "h-2"])
      world.host(hostId).offer([
        { sandboxId: "../../../etc/x y", name: "fair-name" },
        { sandboxId: newSandboxId(randomBytes), name: "\u001b[2J" },
      ]);
    await quiet();
    const { sandbox } = (await a.call("CreateSandbox")).body;
    expect(sandbox.id).toMatch(/^sbx-[a-z0-9]{20}$/);
    expect(sandbox.name).toMatch(/^[a-z]+-[a-z]+-\d{4}$/);
  });

  it("puts no message of megabytes into a record, nor an image or a policy that no sandbox has", async () => {
    const { id, generation } = await made("h-1");
    const egress = { mode: "evil", domains: ["x.example"], cidrs: [] };
    await says(id, { revision: generation + 5, spec: create(MachineSpecSchema, { egress }) });
    expect((await recordOf(id))?.egress.mode).toBe("open");
    await a.call("SuspendSandbox", { id });
    await world.clock.advance(1_000);
    await a.gateway.settled();
    const suspended = { phase: MachinePhase.SUSPENDED, revision: 0 };
    const storedImage = create(StoredImageSchema, { key: "../../etc/passwd", bytes: 1 });
    await says(id, { ...suspended, storedImage });
    expect(await recordOf(id)).toMatchObject({ state: "SANDBOX_STATE_SUSPENDED", image: "" });
    await a.call("ResumeSandbox", { id });
    await world.clock.advance(1_000);
    world.host("h-1").crash(id, "e".repeat(1_000_000));
    await expect.poll(async () => (await recordOf(id))?.state).toBe("SANDBOX_STATE_ERROR");
    expect((await recordOf(id))?.errorMessage).toHaveLength(1_000);
  });

  it("puts no refusal of megabytes into a record", async () => {
    const { id } = await made("h-1");
    world.host("h-1").fault("suspendMachine", "before", Code.FailedPrecondition, 1, "r".repeat(1_000_000));
    await a.call("SuspendSandbox", { id });
    await world.clock.advance(1_000);
    await a.gateway.settled();
    const message = (await recordOf(id))?.errorMessage ?? "";
    expect(message).toMatch(/^suspend did not complete: r/);
    expect(message.length).toBeLessThan(5_000);
  });

  it("hinders no change of its sandbox by a phase that there is not", async () => {
    const { id } = await made("h-1");
    await says(id, { phase: 99 as MachinePhase });
    expect((await a.call("UpdateSandbox", { id, name: "another" })).status).toBe(200);
  });

  it("has no machine but the one that was asked for", async () => {
    const { id, teamId } = await made("h-1");
    const another = machine({ sandboxId: newSandboxId(randomBytes), phase: MachinePhase.SUSPENDED });
    world.host("h-1").client.suspendMachine = () => Promise.resolve(another);
    await a.call("SuspendSandbox", { id });
    await world.clock.advance(1_000);
    await a.gateway.settled();
    const entries = await world.database.audit.list({ teamId, subject: id, limit: 20 });
    expect(entries.map(({ action, result }) => `${action} ${result}`)).toContain(
      "sandbox.suspend.done failed",
    );
  });
});

describe("reports", () => {
  const nowMs = Date.UTC(2026, 0, 1);
  const id = newSandboxId(randomBytes);

  it("have times that can be, and ids", () => {
    const since = (at: bigint) => reportedMachine(machine({ sandboxId: id, runningSinceUnixMs: at }), nowMs);
    expect(since(BigInt(nowMs))?.runningSinceUnixMs).toBe(BigInt(nowMs));
    for (const at of [2n ** 63n - 1n, -(2n ** 63n), BigInt(nowMs + 86_400_000)])
      expect(since(at)?.runningSinceUnixMs).toBe(0n);
    for (const other of ["", "x", `${id}/..`, "s".repeat(1_000_000)])
      expect(reportedMachine(machine({ sandboxId: other }), nowMs)).toBeUndefined();
  });

  it("of audit events are of callers with a token, and short", () => {
    const event = (fields: object) =>
      reportedAudit(create(AuditEventSchema, { actor: "token:t", atUnixMs: 1n, ...fields }), nowMs);
    expect(event({ detail: "d".repeat(1_000_000), subject: "s".repeat(5_000) })).toMatchObject({
      detail: "d".repeat(1_000),
      subject: "s".repeat(1_000),
    });
    expect(event({ actor: "key-of-an-admin" })).toBeUndefined();
  });

  it("of audit events are kept, though the host's clock is wrong", () => {
    const atOf = (atUnixMs: bigint) =>
      reportedAudit(create(AuditEventSchema, { actor: "token:t", atUnixMs }), nowMs)?.atUnixMs;
    const tenMinutesAhead = BigInt(nowMs + 600_000);
    expect(atOf(tenMinutesAhead)).toBe(tenMinutesAhead);
    for (const at of [BigInt(nowMs + 86_400_000), 2n ** 63n - 1n, 0n]) expect(atOf(at)).toBe(BigInt(nowMs));
  });

  it("of as many suspended sandboxes as a team may have, each with 4 GB in storage, are all kept", () => {
    const packs = Array.from({ length: 128 }, () => ({ id: `pack-${"a".repeat(20)}`, bytes: 2 ** 25 }));
    const key = `${"a".repeat(20)}-4294967295-4294967295-0123456789ab`;
    const cpuClass = "x64-genuineintel-6-143-1f0c93ab.gvisor-0.0~20260905.0-1";
    const storedImage = create(StoredImageSchema, { key, cpuClass, bytes: 2 ** 32, packs });
    const machines = new ReportedMachines();
    for (let count = 0; count < 10_000; count += 1) {
      const sandboxId = `sbx-${String(count).padStart(20, "0")}`;
      const rest = machine({ sandboxId, phase: MachinePhase.SUSPENDED, storedImage });
      const known = reportedMachine(rest, nowMs);
      expect(known?.storedImage?.packs.length).toBe(packs.length);
      if (known !== undefined) machines.set(known);
    }
    expect([...machines.values()]).toHaveLength(10_000);
  });

  it("of ever more machines end, and take a bounded part of the memory", () => {
    const machines = new ReportedMachines();
    const flood = () => {
      for (let count = 0; count < 1_000_000; count += 1)
        machines.set(machine({ sandboxId: `sbx-${String(count).padStart(20, "0")}` }));
    };
    expect(flood).toThrow("more machines than a host can have");
    const kept = [...machines.values()];
    expect(kept.length).toBeLessThan(270_000);
    for (const { sandboxId } of kept) machines.delete(sandboxId);
    machines.set(machine({ sandboxId: id }));
    expect([...machines.values()]).toHaveLength(1);
  });
});
