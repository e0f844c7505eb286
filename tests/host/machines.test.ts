import { readdir, readFile, stat, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Code } from "@connectrpc/connect";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { diskBlocks } from "../../packages/host/src/disk/disk.ts";
import { restartsMax } from "../../packages/host/src/operations/restart-after-crash.ts";
import { signToken } from "../../packages/host/src/testing/data-plane-caller.ts";
import { HostLab } from "./host-lab.ts";

const counter = `i=0; while true; do i=$((i+1)); echo $i > /tmp/count; sleep 0.05; done`;

const secret = "postgres://nobody:not-for-machines@127.0.0.1/none";
/** SCHED_BATCH of sched(7). */
const schedBatch = 3;
/** TIMER_SLACK_NS of native/keeper/parent.c. */
const timerSlackNs = 1_000_000;

/** Generous: the machine may be busy with other things, and none of this is about time. */
const waits = { timeout: 60_000 };

describe("machines of a host", () => {
  let lab: HostLab;
  beforeAll(async () => {
    process.env["CLOCHE_DATABASE_URL"] = secret;
    lab = await HostLab.open();
  });
  afterEach(async () => {
    await lab.destroyAll();
    expect(await lab.leftovers()).toEqual([]);
  });
  afterAll(() => lab.close());

  /** A process that counts, in the background; answers its count so far. */
  const startCounter = async (id: string): Promise<void> => {
    await lab.exec(id, "sh", "-c", `setsid sh -c '${counter}' >/dev/null 2>&1 &`);
    await expect.poll(async () => lab.exec(id, "cat", "/tmp/count").catch(() => ""), waits).not.toBe("");
  };
  /** Looks again where the file is being written just then. */
  const count = async (id: string): Promise<number> => {
    for (;;) {
      const text = await lab.exec(id, "cat", "/tmp/count");
      if (text !== "") return Number(text);
    }
  };
  const goesOn = async (id: string, from: number): Promise<void> => {
    await expect.poll(() => count(id), waits).toBeGreaterThan(from);
  };

  it("creates, repeats a create, lists and destroys", async () => {
    const spec = lab.spec({ name: "Brave Otter!" });
    const machine = await lab.client.createMachine({ spec });
    expect(await lab.client.createMachine({ spec })).toEqual(machine);
    expect(await lab.exec(spec.sandboxId, "hostname")).toBe("brave-otter");
    expect(await lab.exec(spec.sandboxId, "python3", "-c", "print(6 * 7)")).toBe("42");
    expect((await lab.client.listMachines({})).machines).toHaveLength(1);
    await lab.client.destroyMachine({ sandboxId: spec.sandboxId });
    await lab.client.destroyMachine({ sandboxId: spec.sandboxId });
    await expect(lab.client.getMachine({ sandboxId: spec.sandboxId })).rejects.toThrow(/no machine/);
  });

  it("gives a machine's processes nothing of the service's environment, and has them take no processor from others", async () => {
    const { sandboxId } = await lab.create({});
    const { pid: sentry } = JSON.parse(await unitOf(lab)).sandbox as { pid: number };
    const ours: number[] = [];
    for (const name of await readdir("/proc")) {
      const command = await readFile(`/proc/${name}/cmdline`, "utf8").catch(() => "");
      if (/^[0-9]+$/.test(name) && command.includes(lab.runDir)) ours.push(Number(name));
    }
    expect(ours).toContain(sentry);
    for (const pid of ours) expect(await readFile(`/proc/${pid}/environ`, "latin1")).not.toContain(secret);
    // The 41st figure of stat is the scheduling policy; what the sentry starts inherits it.
    const stat = await readFile(`/proc/${sentry}/stat`, "latin1");
    expect(Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[41 - 3])).toBe(schedBatch);
    const slackNs = Number(await readFile(`/proc/${sentry}/timerslack_ns`, "latin1"));
    expect(slackNs).toBe(timerSlackNs);
    expect(await lab.exec(sandboxId, "true")).toBe("");
  });

  it("forks a living process; clones diverge, have their own names, and outlive the source", async () => {
    const { sandboxId: source } = await lab.create({ name: "source" });
    await startCounter(source);
    await lab.exec(source, "sh", "-c", "echo shared > /root/note");
    const before = await count(source);
    const clones = await Promise.all(
      Array.from({ length: 3 }, (_, i) => lab.fork(source, { name: `clone ${i}` })),
    );
    for (const [i, { sandboxId }] of clones.entries()) {
      expect(await count(sandboxId)).toBeGreaterThanOrEqual(before);
      await goesOn(sandboxId, before);
      expect(await lab.exec(sandboxId, "cat", "/root/note")).toBe("shared");
      expect(await lab.exec(sandboxId, "hostname")).toBe(`clone-${i}`);
    }
    const ids = clones.map(({ sandboxId }) => sandboxId);
    const machineIds = await Promise.all(
      [source, ...ids].map((id) => lab.exec(id, "cat", "/etc/machine-id")),
    );
    expect(new Set(machineIds).size).toBe(4);
    await lab.client.destroyMachine({ sandboxId: source });
    const forkOfFork = await lab.fork(ids[0] as string);
    await goesOn(forkOfFork.sandboxId, before);
  });

  it("forks share the source's blocks of the disk, and keep no copy of its memory", async () => {
    const mebibyte = 1024 * 1024;
    const { native, pool } = lab.artifacts;
    const { sandboxId: source } = await lab.create();
    await lab.exec(source, "sh", "-c", "head -c 64M /dev/urandom > /root/data && sync");
    const clones = await Promise.all(Array.from({ length: 3 }, () => lab.fork(source)));
    for (const { sandboxId } of clones) {
      const dir = join(pool.dir, "machines", sandboxId);
      const { disk } = JSON.parse(await readFile(join(dir, "machine.json"), "utf8")) as { disk: string };
      const { allocatedBytes, exclusiveBytes } = await diskBlocks(native, join(dir, disk));
      expect(allocatedBytes).toBeGreaterThan(64 * mebibyte);
      expect(exclusiveBytes).toBeLessThan(16 * mebibyte);
    }
    // One image of the memory served them all, and is gone.
    expect(await readdir(join(pool.dir, "snapshots"))).toEqual([]);
  });

  it("suspends and resumes with its processes, also across a restart of the service", async () => {
    const { sandboxId } = await lab.create();
    await startCounter(sandboxId);
    const before = await count(sandboxId);
    await lab.client.suspendMachine({ sandboxId });
    expect(await lab.phase(sandboxId)).toBe("SUSPENDED");
    // What the machine held is freed behind the answer.
    await expect.poll(async () => (await lab.leftovers()).filter((name) => name !== sandboxId)).toEqual([]);
    await lab.restart();
    expect(await lab.phase(sandboxId)).toBe("SUSPENDED");
    await lab.client.resumeMachine({ sandboxId });
    expect(await count(sandboxId)).toBeGreaterThanOrEqual(before);
    await goesOn(sandboxId, before);
    const clock = Number(await lab.exec(sandboxId, "date", "+%s"));
    expect(Math.abs(clock - Date.now() / 1000)).toBeLessThan(5);
  });

  describe("memory that cannot be restored here", () => {
    const imageOf = async (sandboxId: string): Promise<string> => {
      const dir = join(lab.artifacts.pool.dir, "machines", sandboxId);
      const [snapshot = ""] = (await readdir(dir)).filter((name) => name.startsWith("snapshot-"));
      return join(dir, snapshot);
    };
    /** A suspended sandbox with a note on its disk, a service and a process; answers where its image lies. */
    const suspended = async (): Promise<{ sandboxId: string; image: string }> => {
      const { sandboxId } = await lab.create();
      await lab.exec(sandboxId, "sh", "-c", "echo kept > /root/note; (sleep 7777 > /dev/null 2>&1 &)");
      await lab.agent(sandboxId, "PUT", "/v1/services/web", { cmd: "sleep", args: ["1000"] });
      await lab.agent(sandboxId, "POST", "/v1/services/web/start");
      await lab.client.suspendMachine({ sandboxId });
      return { sandboxId, image: await imageOf(sandboxId) };
    };
    const startsCold = async (sandboxId: string, why: RegExp): Promise<void> => {
      const { errorMessage } = await lab.client.resumeMachine({ sandboxId });
      expect(errorMessage).toMatch(/^started from its disk, without its memory: .*; services started: web$/);
      expect(errorMessage).toMatch(why);
      expect(await lab.exec(sandboxId, "cat", "/root/note")).toBe("kept");
      expect(await lab.exec(sandboxId, "sh", "-c", "pgrep -fx 'sleep 7777' || true")).toBe("");
      const web = await lab.agent(sandboxId, "GET", "/v1/services/web");
      expect(web).toMatchObject({ body: { status: "running" } });
      await lab.destroyAll();
    };
    const changeNote = async (image: string, change: object): Promise<void> => {
      const path = join(image, "made-with");
      const known = JSON.parse(await readFile(path, "utf8")) as object;
      await writeFile(path, JSON.stringify({ ...known, ...change }));
    };

    it.each([
      [
        "under another version of the runtime",
        { platform: "another", runscVersion: "20260101.0" },
        /saved by gVisor 20260101.0, and gVisor 2026\S+ of this host cannot restore it/,
      ],
      ["on another CPU", { platform: "another", cpuClass: "another" }, /saved on another kind of processor/],
      [
        "with an agent that is gone",
        { agentRootDir: "/gone/agent-root-0123456789abcdef" },
        /the agent .* is no longer in this host's cache/,
      ],
    ])("starts from its disk what was suspended %s, and says so", async (_, change, why) => {
      const { sandboxId, image } = await suspended();
      await changeNote(image, change);
      await startsCold(sandboxId, why);
    });

    it.each([
      ["pages that are missing", "pages.img", -4_096],
      ["half a state", "checkpoint.img", 1_000],
      ["no list of pages", "pages_meta.img", 0],
      ["a note that a power cut tore", "made-with", 0],
    ])("starts from its disk what has %s, and says so", async (_, file, bytes) => {
      const { sandboxId, image } = await suspended();
      const { size } = await stat(join(image, file));
      await truncate(join(image, file), bytes < 0 ? size + bytes : bytes);
      await startsCold(sandboxId, /the memory image is damaged/);
    });

    it("is what a machine saves whose sentry an earlier release started; it runs on, and is not forked", async () => {
      const { sandboxId } = await lab.create();
      await lab.exec(sandboxId, "sh", "-c", "echo kept > /root/note");
      await lab.agent(sandboxId, "PUT", "/v1/services/web", { cmd: "sleep", args: ["1000"] });
      await lab.agent(sandboxId, "POST", "/v1/services/web/start");
      const record = JSON.parse(await unitOf(lab)) as { name: string; runscVersion: string };
      expect(record.runscVersion).toBe(lab.artifacts.runsc.version);
      await lab.host.stop({ suspend: false });
      const earlier = JSON.stringify({ ...record, runscVersion: "20260101.0" });
      await writeFile(`${lab.runDir}/gvisor/units/${record.name}/unit.json`, earlier);
      await lab.restart();
      expect(await lab.exec(sandboxId, "cat", "/root/note")).toBe("kept");
      await expect(lab.fork(sandboxId)).rejects.toMatchObject({
        code: Code.FailedPrecondition,
        message: expect.stringMatching(/has run since before an upgrade.*checkpoint_id/) as string,
      });
      expect((await lab.client.listMachines({})).machines).toHaveLength(1);
      await lab.client.suspendMachine({ sandboxId });
      await startsCold(sandboxId, /by gVisor 20260101\.0, and/);
    });
  });

  it("adopts what runs after a restart, without interrupting it", async () => {
    const { sandboxId } = await lab.create();
    await startCounter(sandboxId);
    const before = await count(sandboxId);
    await lab.restart();
    expect(await lab.phase(sandboxId)).toBe("RUNNING");
    await goesOn(sandboxId, before);
  });

  it("starts cold from its disk what is gone after a restart", async () => {
    const { sandboxId } = await lab.create();
    await lab.exec(sandboxId, "sh", "-c", "echo kept > /root/note; sync");
    const { pid } = JSON.parse(await unitOf(lab)).sandbox as { pid: number };
    await lab.host.stop({ suspend: false });
    process.kill(pid, "SIGKILL");
    await lab.restart();
    await expect.poll(() => lab.phase(sandboxId), waits).toBe("RUNNING");
    expect(await lab.exec(sandboxId, "cat", "/root/note")).toBe("kept");
    expect((await lab.client.getMachine({ sandboxId })).errorMessage).toBe(
      "started from its disk, without its memory: its machine had ended when the service started; services started: none",
    );
  });

  it("starts a machine that ends by itself again, with its services, and gives up on one that keeps ending", async () => {
    const { sandboxId } = await lab.create();
    const web = { cmd: "sleep", args: ["1000"], needs: ["db"] };
    await lab.agent(sandboxId, "PUT", "/v1/services/db", { cmd: "sleep", args: ["1000"] });
    await lab.agent(sandboxId, "PUT", "/v1/services/web", web);
    await lab.agent(sandboxId, "PUT", "/v1/services/idle", { cmd: "sleep", args: ["1000"] });
    await lab.agent(sandboxId, "POST", "/v1/services/web/start");
    await lab.agent(sandboxId, "PUT", "/v1/store/key", { value: "kept" });
    const end = async (): Promise<void> => {
      const before = (await lab.client.getMachine({ sandboxId })).epoch;
      const { pid } = JSON.parse(await unitOf(lab)).sandbox as { pid: number };
      process.kill(pid, "SIGKILL");
      await expect
        .poll(async () => (await lab.client.getMachine({ sandboxId })).epoch, waits)
        .not.toBe(before);
    };
    for (let round = 0; round < restartsMax; round += 1) {
      await end();
      await expect
        .poll(async () => (await lab.client.getMachine({ sandboxId })).errorMessage, waits)
        .toMatch(/started again from its disk: .*killed by signal 9/);
      await expect.poll(() => lab.phase(sandboxId), waits).toBe("RUNNING");
      expect(await lab.agent(sandboxId, "GET", "/v1/store/key")).toMatchObject({ body: { value: "kept" } });
      const statuses = async (): Promise<unknown> => {
        const { body } = await lab.agent(sandboxId, "GET", "/v1/services");
        return body["services"].map((one: Record<string, unknown>) => [one["name"], one["status"]]);
      };
      await expect.poll(statuses, waits).toEqual([
        ["db", "running"],
        ["idle", "stopped"],
        ["web", "running"],
      ]);
    }
    await end();
    await expect.poll(() => lab.phase(sandboxId), waits).toBe("FAILED");
    expect((await lab.client.getMachine({ sandboxId })).errorMessage).toMatch(
      /killed by signal 9; it had been/,
    );
  });

  it("takes checkpoints and restores them in place, with services", async () => {
    const { sandboxId } = await lab.create();
    const define = (name: string, fields: object): Promise<unknown> =>
      lab.agent(sandboxId, "PUT", `/v1/services/${name}`, { cmd: "sleep", args: ["1000"], ...fields });
    await define("a", {});
    await define("b", { needs: ["a"] });
    await lab.agent(sandboxId, "POST", "/v1/services/b/start");
    await lab.agent(sandboxId, "PUT", "/v1/store/key", { value: "before" });
    await lab.exec(sandboxId, "sh", "-c", "echo before > /root/note");
    const taken = await lab.checkpoint(sandboxId, "POST", "/v1/checkpoint", { name: "first" });
    expect(taken).toMatchObject({ status: 200, body: { ok: true } });
    const id = String(taken.body["checkpoint_id"]);
    await define("c", {});
    await lab.agent(sandboxId, "POST", "/v1/services/c/start");
    await lab.agent(sandboxId, "POST", "/v1/services/b/stop");
    await lab.agent(sandboxId, "PUT", "/v1/store/key", { value: "after" });
    await lab.exec(sandboxId, "sh", "-c", "rm -rf /usr /etc /root/note; true").catch(() => undefined);
    const restored = await lab.checkpoint(sandboxId, "POST", "/v1/restore", { checkpoint_id: id });
    expect(restored).toMatchObject({
      status: 200,
      body: { ok: true, started_services: ["a", "b"], stopped_services: ["c"], failed_services: [] },
    });
    expect(await lab.exec(sandboxId, "cat", "/root/note")).toBe("before");
    expect(await lab.agent(sandboxId, "GET", "/v1/store/key")).toMatchObject({ body: { value: "before" } });
    const waited = await lab.checkpoint(sandboxId, "POST", "/v1/checkpoint/wait", {
      checkpoint_id: id,
      poll_interval_ms: 60_000,
      timeout_secs: 100,
    });
    expect(waited).toMatchObject({ status: 200, body: { visible: true, ok: true } });
    // Told when it is there, not at the next look.
    expect(waited.body["waited_ms"]).toBeLessThan(60_000);
    const list = await lab.checkpoint(sandboxId, "GET", "/v1/checkpoint/list");
    expect(list.body["checkpoints"]).toMatchObject([{ id, name: "first", visible: true }]);
    expect(list.body["checkpoints"][0].size_bytes).toBe(taken.body["size_bytes"]);
    const seeded = await lab.create({ checkpointId: id });
    expect(await lab.exec(seeded.sandboxId, "cat", "/root/note")).toBe("before");
    // Another sandbox's checkpoint behaves as unknown, and a deleted one too.
    const foreign = await lab.checkpoint(seeded.sandboxId, "POST", "/v1/restore", { checkpoint_id: id });
    expect(foreign.status).toBe(404);
    const deleted = await lab.checkpoint(sandboxId, "DELETE", `/v1/checkpoint/${id}`);
    expect(deleted).toMatchObject({ status: 200, body: { ok: true } });
    expect(deleted.body["freed_bytes"]).toBeGreaterThan(0);
    expect((await lab.checkpoint(sandboxId, "DELETE", `/v1/checkpoint/${id}`)).status).toBe(404);
    expect(await lab.exec(sandboxId, "cat", "/root/note")).toBe("before");
  });

  it("refuses what is wrong on the checkpoint routes", async () => {
    const { sandboxId } = await lab.create();
    const ask = (method: string, path: string, body?: object) =>
      lab.checkpoint(sandboxId, method, path, body);
    expect(await ask("POST", "/v1/checkpoint", { name: 7 })).toMatchObject({ status: 400 });
    expect(await ask("POST", "/v1/restore", {})).toMatchObject({ status: 400 });
    expect(await ask("POST", "/v1/restore", { checkpoint_id: "ckpt-nope" })).toMatchObject({ status: 404 });
    const wait = { checkpoint_id: "ckpt-nope", timeout_secs: 0 };
    expect(await ask("POST", "/v1/checkpoint/wait", wait)).toMatchObject({
      status: 408,
      body: { code: "deadline_exceeded" },
    });
    expect(await ask("POST", "/v1/checkpoint/wait", { ...wait, poll_interval_ms: "1" })).toMatchObject({
      status: 400,
    });
    expect(await ask("GET", "/v1/checkpoint")).toMatchObject({ status: 405 });
    const other = await lab.create();
    const foreign = await lab.caller?.call(
      sandboxId,
      "GET",
      "/v1/checkpoint/list",
      undefined,
      signToken(other.sandboxId),
    );
    expect(foreign).toMatchObject({ status: 401, body: { code: "unauthenticated" } });
  });

  it("refuses to save the memory of a process that holds a large deleted file, and names it", async () => {
    const { sandboxId } = await lab.create();
    await lab.exec(
      sandboxId,
      "sh",
      "-c",
      "(exec 9> /root/gone; head -c 20M /dev/zero >&9; rm /root/gone; exec sleep 1000) > /dev/null 2>&1 &",
    );
    await expect
      .poll(
        () =>
          lab
            .exec(sandboxId, "sh", "-c", "pgrep -x sleep && test ! -e /root/gone && echo ready")
            .catch(() => ""),
        waits,
      )
      .toMatch(/ready/);
    await expect(lab.client.suspendMachine({ sandboxId })).rejects.toThrow(/\/root\/gone/);
    expect(await lab.phase(sandboxId)).toBe("RUNNING");
    expect(await lab.exec(sandboxId, "echo", "alive")).toBe("alive");
    // A checkpoint is of the disk alone.
    expect(await lab.checkpoint(sandboxId, "POST", "/v1/checkpoint")).toMatchObject({ status: 200 });
  });

  it("suspends everything when the service stops", async () => {
    const { sandboxId } = await lab.create();
    await startCounter(sandboxId);
    const before = await count(sandboxId);
    await lab.host.stop({ suspend: true });
    expect((await lab.leftovers()).filter((name) => name !== sandboxId)).toEqual([]);
    await lab.restart();
    expect(await lab.phase(sandboxId)).toBe("SUSPENDED");
    await lab.client.resumeMachine({ sandboxId });
    await goesOn(sandboxId, before);
  });
});

/** The record of the only unit there is. */
async function unitOf(lab: HostLab): Promise<string> {
  const units = `${lab.runDir}/gvisor/units`;
  const [name] = await readdir(units);
  return readFile(`${units}/${name}/unit.json`, "utf8");
}
