// Faults of the host below running machines, with real sandboxes (docs/faults.md): a full pool, an agent that hangs.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { Code } from "@connectrpc/connect";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { Cgroup } from "../../packages/host/src/drivers/cgroup.ts";
import { fillPool } from "./full-pool.ts";
import { HostLab } from "./host-lab.ts";

describe("a host in trouble", () => {
  let lab: HostLab;
  beforeAll(async () => {
    lab = await HostLab.open();
  });
  afterEach(async () => {
    await lab.destroyAll();
    expect(await lab.leftovers()).toEqual([]);
  });
  afterAll(() => lab.close());

  it("with a full pool refuses what needs space, keeps what runs, and does it all again once there is space", async () => {
    const { sandboxId } = await lab.create();
    await lab.exec(sandboxId, "sh", "-c", "echo kept > /root/note; sync");
    expect((await lab.agent(sandboxId, "PUT", "/v1/store/key", { value: "kept" })).status).toBe(200);
    const full = { code: Code.ResourceExhausted };
    const giveBack = fillPool(lab.artifacts.pool.dir, 1);
    try {
      await expect(lab.client.suspendMachine({ sandboxId })).rejects.toMatchObject(full);
      expect(await lab.phase(sandboxId)).toBe("RUNNING");
      await expect(lab.create()).rejects.toMatchObject(full);
      await expect(lab.fork(sandboxId)).rejects.toMatchObject(full);
      const { status, body } = await lab.checkpoint(sandboxId, "POST", "/v1/checkpoint", {});
      expect([status, body["code"]]).toEqual([507, "resource_exhausted"]);
      expect(await lab.exec(sandboxId, "cat", "/root/note")).toBe("kept");
    } finally {
      giveBack();
    }
    expect((await lab.checkpoint(sandboxId, "POST", "/v1/checkpoint", {})).status).toBe(200);
    await lab.client.suspendMachine({ sandboxId });
    await lab.client.resumeMachine({ sandboxId });
    expect(await lab.exec(sandboxId, "cat", "/root/note")).toBe("kept");
    await lab.exec(sandboxId, "sh", "-c", "echo more > /root/more; sync");
    expect((await lab.agent(sandboxId, "GET", "/v1/store/key")).body).toMatchObject({ value: "kept" });
    const fork = await lab.fork(sandboxId);
    expect(await lab.exec(fork.sandboxId, "cat", "/root/more")).toBe("more");
  });

  it("with a full pool but for what undoing and deleting need, refuses before anything is begun", async () => {
    const { sandboxId } = await lab.create();
    const full = { code: Code.ResourceExhausted };
    // A new machine takes a few blocks, so it is the reserve that refuses it.
    const giveBack = fillPool(lab.artifacts.pool.dir, 64);
    try {
      await expect(lab.create()).rejects.toMatchObject(full);
      await expect(lab.fork(sandboxId)).rejects.toMatchObject(full);
      await lab.client.destroyMachine({ sandboxId });
    } finally {
      giveBack();
    }
  });

  it("a sandbox that hangs harms no other, and can be deleted all the same", async () => {
    const hung = await lab.create();
    const other = await lab.create();
    const cgroup = cgroupOf(lab, hung.sandboxId);
    await cgroup.freeze(true);
    let isAnswered = false;
    void lab.exec(hung.sandboxId, "true").then(
      () => (isAnswered = true),
      () => undefined,
    );
    expect(await lab.exec(other.sandboxId, "echo", "fine")).toBe("fine");
    expect((await lab.client.listMachines({})).machines).toHaveLength(2);
    const next = await lab.create();
    expect(await lab.exec(next.sandboxId, "echo", "fine")).toBe("fine");
    await lab.client.destroyMachine({ sandboxId: hung.sandboxId });
    expect(isAnswered).toBe(false);
  });

  it("a sandbox that hung for a while goes on as if nothing had been", async () => {
    const { sandboxId } = await lab.create();
    const cgroup = cgroupOf(lab, sandboxId);
    await cgroup.freeze(true);
    const call = lab.exec(sandboxId, "echo", "late");
    await cgroup.freeze(false);
    expect(await call).toBe("late");
  });
});

/** Of a machine's processes. */
function cgroupOf(lab: HostLab, sandboxId: string): Cgroup {
  const units = join(lab.runDir, "gvisor/units");
  const unit = readdirSync(units).find((name) =>
    readFileSync(join(units, name, "unit.json"), "utf8").includes(sandboxId),
  );
  return new Cgroup(`/cloche-${lab.tag}/${unit}`);
}
