/** Machines of a database that is newer than the one that was restored. */
import { MachinePhase } from "@cloche/protocol/host";
import { afterEach, beforeEach, expect, it } from "vitest";
import { type GatewayFixture, openFixture } from "../testing/gateway-fixture.ts";
import { quiet } from "../testing/fake-clock.ts";

const id = "sbx-11111111111111111111";
const spec = { sandboxId: id, name: "kept", template: "debian", env: { A: "1" }, cpus: 2 };

let f: GatewayFixture;
beforeEach(async () => {
  f = await openFixture();
});
afterEach(() => f.close());

const add = (phase = MachinePhase.RUNNING, teamId = f.teamId): void => {
  f.host.add({ ...spec, teamId }, phase, { revision: 7, spec });
};
const get = async () => (await f.call("GetSandbox", { id })).body.sandbox;

it("a machine that the database never knew is kept, by every comparison and every start", async () => {
  add();
  await f.gateway.settled();
  await f.clock.advance(60_000);
  await f.restart();
  await f.clock.advance(60_000);
  expect(f.host.phase(id)).toBe(MachinePhase.RUNNING);
  expect(await f.gateway.orphans.list()).toMatchObject([{ id, name: "kept", phase: "running" }]);
});

it.each([
  ["running", MachinePhase.RUNNING, "SANDBOX_STATE_RUNNING"],
  ["suspended", MachinePhase.SUSPENDED, "SANDBOX_STATE_SUSPENDED"],
])("one that is %s is adopted as it is", async (_, phase, state) => {
  add(phase);
  await f.gateway.orphans.adopt(id, "");
  await f.gateway.settled();
  expect(await get()).toMatchObject({ id, name: "kept", state });
  expect((await f.database.sandboxes.get(id))?.env).toEqual({ A: "1" });
  expect(await f.gateway.orphans.list()).toEqual([]);
  // The host refuses policies that are older than the one it has.
  await f.call("UpdateSandbox", { id, egress: { mode: "none" } });
  expect(f.host.egress.get(id)?.revision).toBeGreaterThan(7);
  await f.call("DeleteSandbox", { id });
  await expect.poll(() => f.host.phase(id)).toBeUndefined();
});

it.each([
  [{ mode: "allow", domains: ["*.Example.org.:443"], cidrs: ["203.0.113.0/24:8000-8100"] }, "allow"],
  [{ mode: "of-a-later-release", domains: [], cidrs: [] }, "none"],
  [undefined, "open"],
])("one with the policy %j is adopted with the mode %s", async (egress, mode) => {
  f.host.add({ ...spec, teamId: f.teamId }, MachinePhase.RUNNING, {
    revision: 7,
    spec: { ...spec, ...(egress && { egress }) },
  });
  await f.gateway.orphans.adopt(id, "");
  const adopted = (await f.database.sandboxes.get(id))?.egress;
  expect(adopted).toMatchObject({ mode, domains: egress?.mode === mode ? egress.domains : [] });
});

it("one of a team that is not there needs the name of another", async () => {
  add(MachinePhase.RUNNING, "team-gone");
  await expect(f.gateway.orphans.adopt(id, "")).rejects.toThrow(/no team team-gone.*--team/);
  await f.gateway.orphans.adopt(id, f.teamId);
  expect(await get()).toMatchObject({ id });
});

it("one that failed cannot be adopted, and is deleted by command", async () => {
  add(MachinePhase.FAILED);
  await expect(f.gateway.orphans.adopt(id, "")).rejects.toThrow(/is failed/);
  await f.gateway.orphans.remove(id);
  expect(f.host.phase(id)).toBeUndefined();
  // Whatever is left of it goes too.
  add();
  await expect.poll(() => f.host.phase(id)).toBeUndefined();
});

it("a sandbox's own machine is no orphan", async () => {
  const own = (await f.call("CreateSandbox", {})).body.sandbox.id;
  expect(await f.gateway.orphans.list()).toEqual([]);
  await expect(f.gateway.orphans.remove(own)).rejects.toThrow(/no machine without a sandbox/);
  expect(f.host.phase(own)).toBe(MachinePhase.RUNNING);
});

it("a policy that was set after the backup is kept, and later ones are in force", async () => {
  const own = (await f.call("CreateSandbox", {})).body.sandbox.id;
  await quiet();
  const egress = { mode: "none", domains: [], cidrs: [], revision: 50 };
  f.host.add({ sandboxId: own }, MachinePhase.RUNNING, { revision: 50, spec: { sandboxId: own, egress } });
  await f.clock.advance(60_000);
  await f.gateway.settled();
  const record = await f.database.sandboxes.get(own);
  expect(record).toMatchObject({ egress: { mode: "none" } });
  expect(record?.generation).toBeGreaterThan(50);
});
