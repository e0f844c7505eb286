// A disk image or a store file that was damaged while nobody looked: it is named for what it is, and harms only its own sandbox.
import { execFileSync } from "node:child_process";
import {
  closeSync,
  existsSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  readSync,
  renameSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { Code } from "@connectrpc/connect";
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from "vitest";
import { defaults } from "@cloche/protocol";
import { limitsOf } from "../fixtures/unit-cgroup.ts";
import { HostLab } from "./host-lab.ts";

const damaged = {
  code: Code.FailedPrecondition,
  rawMessage: expect.stringMatching(/file system is damaged/),
};
const SUPERBLOCK = 1_024;
const GROUP_DESCRIPTORS = 4_096;

/** Overwrites part of a file; answers the function that puts it back. */
function overwrite(file: string, offset: number, bytes: Buffer): () => void {
  const before = Buffer.alloc(bytes.length);
  const put = (what: Buffer): void => {
    const handle = openSync(file, "r+");
    writeSync(handle, what, 0, what.length, offset);
    closeSync(handle);
  };
  const handle = openSync(file, "r");
  readSync(handle, before, 0, before.length, offset);
  closeSync(handle);
  put(bytes);
  return () => put(before);
}

/** Changes files of a disk that nobody has attached. */
function inImage(lab: HostLab, image: string, change: (cloche: string) => void): void {
  const dir = join(lab.home, "opened");
  mkdirSync(dir, { recursive: true });
  execFileSync("mount", ["-o", "loop", image, dir]);
  try {
    change(join(dir, "cloche"));
  } finally {
    execFileSync("umount", [dir]);
  }
}

describe("a damaged disk", () => {
  let lab: HostLab;
  beforeAll(async () => {
    lab = await HostLab.open(1);
    await lab.driver.settled();
  });
  afterEach(() => lab.destroyAll());
  afterAll(() => lab.close());

  const template = (): string => {
    const dir = join(lab.artifacts.pool.dir, "templates-gvisor");
    return readFileSync(join(dir, readdirSync(dir)[0] ?? "", "template.json"), "utf8");
  };
  /** A visible checkpoint of the sandbox, and its image on the pool. */
  const checkpointOf = async (id: string): Promise<{ checkpointId: string; image: string }> => {
    const { body } = await lab.checkpoint(id, "POST", "/v1/checkpoint", {});
    const checkpointId = String(body["checkpoint_id"]);
    await lab.checkpoint(id, "POST", "/v1/checkpoint/wait", { checkpoint_id: checkpointId });
    return { checkpointId, image: join(lab.artifacts.pool.dir, "checkpoints", checkpointId, "disk.img") };
  };

  it.each<[string, (image: string) => void]>([
    ["without a superblock", (image) => void overwrite(image, SUPERBLOCK, Buffer.alloc(1_024))],
    [
      "with garbage for block groups",
      (image) => void overwrite(image, GROUP_DESCRIPTORS, Buffer.alloc(4_096, 0xa5)),
    ],
    ["cut short", (image) => truncateSync(image, 1024 * 1024)],
  ])("%s is refused by name, and harms nobody else", async (_, damage) => {
    const { sandboxId } = await lab.create();
    await lab.exec(sandboxId, "sh", "-c", "echo kept > /root/note");
    const { checkpointId, image } = await checkpointOf(sandboxId);
    // The same checkpoint works before it is damaged.
    const seeded = await lab.create({ checkpointId });
    expect(await lab.exec(seeded.sandboxId, "cat", "/root/note")).toBe("kept");
    await lab.driver.settled();
    const before = template();
    damage(image);

    await expect(lab.create({ checkpointId })).rejects.toMatchObject(damaged);
    expect(template()).toBe(before);
    const restored = await lab.checkpoint(sandboxId, "POST", "/v1/restore", { checkpoint_id: checkpointId });
    expect(restored).toMatchObject({ status: 409, body: { code: "failed_precondition" } });
    expect(restored.body["message"]).toMatch(/file system is damaged/);
    expect(await lab.exec(sandboxId, "cat", "/root/note")).toBe("kept");
    expect(await lab.exec(seeded.sandboxId, "cat", "/root/note")).toBe("kept");
    const next = await lab.create();
    expect(await lab.exec(next.sandboxId, "echo", "fine")).toBe("fine");
  });

  it("of a suspended sandbox leaves it suspended, and it wakes once the disk is well again", async () => {
    const { sandboxId } = await lab.create();
    await lab.exec(sandboxId, "sh", "-c", "echo kept > /root/note");
    await lab.client.suspendMachine({ sandboxId });
    const dir = join(lab.artifacts.pool.dir, "machines", sandboxId);
    const snapshot = readdirSync(dir).find((name) => name.startsWith("snapshot-")) ?? "";
    const mend = overwrite(join(dir, snapshot, "disk.ext4"), SUPERBLOCK, Buffer.alloc(1_024));
    await expect(lab.client.resumeMachine({ sandboxId })).rejects.toMatchObject(damaged);
    expect(await lab.phase(sandboxId)).toBe("SUSPENDED");
    mend();
    await lab.client.resumeMachine({ sandboxId });
    expect(await lab.exec(sandboxId, "cat", "/root/note")).toBe("kept");
  });

  it.each<[string, (store: string) => void]>([
    ["garbage", (store) => writeFileSync(store, Buffer.alloc(65_536, "garbage"))],
    [
      "a file with a trigger of somebody else's",
      (store) => {
        const database = new DatabaseSync(store);
        database.exec("CREATE TRIGGER strange AFTER INSERT ON entries BEGIN DELETE FROM entries; END");
        database.close();
      },
    ],
    [
      "a link to the host's files",
      (store) => {
        rmSync(store);
        execFileSync("ln", ["-s", "/etc/passwd", store]);
      },
    ],
  ])("whose store is %s has no store, says so, and has everything else", async (_, damage) => {
    const { sandboxId } = await lab.create();
    const store = (method: string, body?: object) => lab.agent(sandboxId, method, "/v1/store/key", body);
    expect((await store("PUT", { value: "kept" })).status).toBe(200);
    const good = await checkpointOf(sandboxId);
    const bad = await checkpointOf(sandboxId);
    inImage(lab, bad.image, (cloche) => damage(join(cloche, "store.db")));

    const restore = (checkpointId: string) =>
      lab.checkpoint(sandboxId, "POST", "/v1/restore", { checkpoint_id: checkpointId });
    expect((await restore(bad.checkpointId)).status).toBe(200);
    for (const answer of [await store("GET"), await store("PUT", { value: 1 })]) {
      expect(answer).toMatchObject({ status: 500, body: { code: "internal" } });
      expect(answer.body["message"]).toMatch(/store's file .* is damaged/);
    }
    expect(await lab.exec(sandboxId, "echo", "fine")).toBe("fine");
    expect((await lab.checkpoint(sandboxId, "POST", "/v1/checkpoint", {})).status).toBe(200);
    // What the error advises is possible.
    expect((await restore(good.checkpointId)).status).toBe(200);
    expect((await store("GET")).body).toMatchObject({ value: "kept" });
  });
});

describe("a machine kept ready", () => {
  let lab: HostLab;
  beforeAll(async () => {
    lab = await HostLab.open(1);
    await lab.driver.settled();
  });
  afterAll(async () => {
    await lab.destroyAll();
    await lab.close();
  });

  it("for a shape that is asked for again and again has that very shape, as one made at once", async () => {
    const shape = { cpus: 1, memoryMb: 384 };
    const seen: unknown[] = [];
    const shaped: (number | undefined)[] = [];
    for (let time = 0; time < 3; time += 1) {
      shaped.push(lab.driver.ready.counts()["shaped"]);
      const { sandboxId } = await lab.create(shape);
      shaped.push(lab.driver.ready.counts()["shaped"]);
      const inside = await lab.exec(sandboxId, "sh", "-c", "nproc; grep MemTotal /proc/meminfo; df -k /tmp");
      seen.push([inside, await limitsOf(lab.home, sandboxId)]);
      await lab.driver.settled();
    }
    // It is there from the second time on, and the third is made of it.
    expect(shaped).toEqual([0, 0, 0, 0, 1, 0]);
    expect(seen[2]).toEqual(seen[0]);
    expect(JSON.stringify(seen[2])).toContain("393216 kB");
    const { sandboxId } = await lab.create({ ...shape, memoryMb: 385 });
    expect(await lab.exec(sandboxId, "grep", "MemTotal", "/proc/meminfo")).toContain("394240 kB");
    await lab.destroyAll();
  });

  it("is made of a template that was prepared, and shares nothing with the next that can be told apart", async () => {
    const fresh = vi.spyOn(lab.driver.ready, "freshDisk");
    const look = `cat /proc/sys/kernel/random/boot_id /etc/machine-id; ls -A /tmp /run /dev/shm /root;
      df --output=size -k /run /dev/shm / | tail -n +2; python3 -c "import os; print(os.urandom(8).hex())"`;
    const shapes = [
      { memoryMb: 512, diskMb: defaults.diskMb },
      { memoryMb: 512, diskMb: defaults.diskMb },
      { memoryMb: 512, diskMb: defaults.diskMb + 1_024 },
      { memoryMb: 512, diskMb: defaults.diskMb - 1_024 },
    ];
    const seen: string[][] = [];
    for (const shape of shapes) {
      const { sandboxId } = await lab.create(shape);
      const lines = (await lab.exec(sandboxId, "sh", "-c", look)).split("\n");
      seen.push(lines.map((line) => line.trim()));
    }
    expect(await Promise.all(fresh.mock.results.map(({ value }) => value))).toEqual([
      true,
      true,
      true,
      false,
    ]);
    fresh.mockRestore();
    // Boot id, machine id and random bytes are everybody's own.
    for (const line of [0, 1, -1])
      expect(new Set(seen.map((lines) => lines.at(line))).size).toBe(shapes.length);
    // Empty folders, and tmpfs by the memory, as where the agent starts its guest at the create.
    const [first, , larger, started] = seen.map((lines) => lines.slice(2, -1));
    expect(first?.slice(0, -1)).toEqual(started?.slice(0, -1));
    expect(first).toContain("262144");
    expect(Number(larger?.at(-1))).toBeGreaterThan(Number(first?.at(-1)));
    await lab.destroyAll();
  });

  it.each<[string, string, number]>([
    ["prepared memory", "prepared/pages.img", defaults.diskMb],
    ["prepared disk", "prepared/disk.ext4", defaults.diskMb],
    ["detached memory", "pages.img", 2_048],
  ])(
    "of a template whose %s is damaged is booted instead, and the template made anew",
    async (_, name, diskMb) => {
      await lab.driver.settled();
      const file = (): string => {
        const dir = join(lab.artifacts.pool.dir, "templates-gvisor");
        return join(dir, readdirSync(dir)[0] ?? "", name);
      };
      const size = statSync(file()).size;
      truncateSync(file(), 4_096);
      const { sandboxId } = await lab.create({ memoryMb: 512, diskMb });
      expect(await lab.exec(sandboxId, "sh", "-c", "echo fine > /root/note; cat /root/note")).toBe("fine");
      expect(existsSync(file())).toBe(false);
      // The next one that is taken lets them be made again.
      for (let round = 0; round < 2; round += 1) {
        const { sandboxId: next } = await lab.create({ diskMb: defaults.diskMb });
        expect(await lab.exec(next, "echo", "fine")).toBe("fine");
        await lab.driver.settled();
      }
      expect(statSync(file()).size).toBeGreaterThan(size / 2);
      await lab.destroyAll();
    },
  );

  it("of a template whose making was cut off is made of a whole one", async () => {
    await lab.driver.settled();
    const dir = join(lab.artifacts.pool.dir, "templates-gvisor");
    const [name = ""] = readdirSync(dir);
    renameSync(join(dir, name), join(dir, ".making-u0"));
    const { sandboxId } = await lab.create({ diskMb: defaults.diskMb });
    expect(await lab.exec(sandboxId, "echo", "fine")).toBe("fine");
    await lab.driver.settled();
    expect(readdirSync(dir)).toEqual([name]);
    await lab.destroyAll();
  });

  it("that does not work any more is replaced by one that is made at once", async () => {
    const ready = join(lab.artifacts.pool.dir, "ready");
    for (const name of readdirSync(ready)) rmSync(join(ready, name));
    const { sandboxId } = await lab.create({ diskMb: defaults.diskMb });
    expect(await lab.exec(sandboxId, "echo", "fine")).toBe("fine");
    await lab.driver.settled();
  });

  it("is assigned with the secret of the template that it was made from, whatever template there is now", async () => {
    const dir = join(lab.artifacts.pool.dir, "templates-gvisor");
    const file = join(dir, readdirSync(dir)[0] ?? "", "template.json");
    writeFileSync(file, JSON.stringify({ secret: "of-a-newer-template" }));
    expect(lab.driver.ready.counts()).toMatchObject({ warm: 1 });
    const { sandboxId } = await lab.create({ diskMb: defaults.diskMb });
    expect(lab.driver.ready.counts()).toMatchObject({ warm: 0 });
    expect(await lab.exec(sandboxId, "echo", "fine")).toBe("fine");
  });
});
