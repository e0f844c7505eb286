// Suspended images between two hosts with real gVisor sandboxes: each has a home, a pool and a cache of its own, as two computers
// would, and both have one storage.
import { cp, link, mkdir, readdir, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { basename, join } from "node:path";
import { MachinePhase } from "@cloche/protocol/host";
import { afterAll, beforeAll, expect, it } from "vitest";
import { diskBlocks } from "../../packages/host/src/disk/disk.ts";
import type { ClusterParts } from "../../packages/host/src/index.ts";
import { FakeCluster } from "../../packages/host/src/testing/fake-cluster.ts";
import { FakeNames } from "../../packages/host/src/testing/fake-names.ts";
import { HostLab } from "./host-lab.ts";

const names = new FakeNames();
const clusterOf = (): (() => ClusterParts) => {
  const parts = new FakeCluster(names).parts();
  return () => parts;
};
const place = `/var/tmp/cloche-images-${process.pid}`;
let here: HostLab;
let there: HostLab;

/** The same artifacts at other paths; the agent's root, which memory images name, is a copy with other times and inodes. */
async function secondCache(agentRootDir: string): Promise<string> {
  const cache = join(place, "cache");
  await mkdir(cache, { recursive: true });
  for (const name of await readdir(HostLab.cache)) {
    if (name.startsWith(".") || name.startsWith("agent-root-")) continue;
    const put = name.endsWith(".json") ? link : symlink; // A host follows no link to a note.
    await put(join(HostLab.cache, name), join(cache, name));
  }
  await cp(agentRootDir, join(cache, basename(agentRootDir)), { recursive: true, verbatimSymlinks: true });
  return cache;
}

beforeAll(async () => {
  here = await HostLab.open(0, undefined, { suffix: "-a", cluster: clusterOf() });
  const cache = await secondCache(here.artifacts.agentRoot.dir);
  there = await HostLab.open(0, undefined, {
    suffix: "-b",
    cache,
    blobsDir: here.blobsDir,
    cluster: clusterOf(),
  });
}, 600_000);
afterAll(async () => {
  await there?.destroyAll();
  await here?.destroyAll();
  const left = [...((await there?.leftovers()) ?? []), ...((await here?.leftovers()) ?? [])];
  await there?.close();
  await here?.close();
  await rm(place, { recursive: true, force: true });
  expect(left).toEqual([]);
});

async function storedKey(sandboxId: string): Promise<string> {
  const image = async () => (await here.client.getMachine({ sandboxId })).storedImage;
  await expect.poll(image, { timeout: 60_000, interval: 20 }).toBeDefined();
  return (await image())?.key ?? "";
}

/** A process that counts, and the file that it counts in. */
const COUNTER =
  "echo $$ > /root/pid; i=0; while true; do i=$((i+1)); echo $i > /root/new; mv /root/new /root/count; sleep 0.05; done";

it("the processes of a sandbox go on on another host, with their pids, memory and disk", async () => {
  const spec = here.spec();
  await here.client.createMachine({ spec });
  const id = spec.sandboxId;
  await here.exec(id, "sh", "-c", "head -c 3000000 /dev/urandom > /root/data");
  await here.exec(id, "sh", "-c", `setsid sh -c '${COUNTER}' </dev/null >/dev/null 2>&1 &`);
  await expect.poll(() => here.exec(id, "sh", "-c", "cat /root/count || echo 0")).not.toBe("0");
  const pid = await here.exec(id, "cat", "/root/pid");
  const command = await here.exec(id, "cat", `/proc/${pid}/cmdline`);
  const data = await here.exec(id, "sha256sum", "/root/data");
  const count = Number(await here.exec(id, "cat", "/root/count"));
  await here.client.suspendMachine({ sandboxId: id });
  const key = await storedKey(id);

  const began = performance.now();
  await there.client.importMachine({ spec, imageKey: key });
  const importedMs = performance.now() - began;
  // Whatever the first host still has is of no use to the second.
  await here.client.destroyMachine({ sandboxId: id });
  await there.client.resumeMachine({ sandboxId: id });
  const resumedMs = performance.now() - began - importedMs;
  process.stdout.write(`import ${importedMs.toFixed(0)} ms, resume ${resumedMs.toFixed(0)} ms\n`);
  const { phase, errorMessage } = await there.client.getMachine({ sandboxId: id });
  expect([phase, errorMessage]).toEqual([MachinePhase.RUNNING, ""]);
  expect(await there.exec(id, "cat", `/proc/${pid}/cmdline`)).toBe(command);
  expect(await there.exec(id, "sha256sum", "/root/data")).toBe(data);
  await expect.poll(async () => Number(await there.exec(id, "cat", "/root/count"))).toBeGreaterThan(count);
});

it("of the disk only what the template lacks is stored and fetched, and the rest is shared on the pool", async () => {
  const spec = here.spec();
  await here.client.createMachine({ spec });
  const id = spec.sandboxId;
  await here.exec(id, "sh", "-c", "head -c 3000000 /dev/urandom > /root/data; sync");
  await here.client.suspendMachine({ sandboxId: id, diskOnly: true });
  const key = await storedKey(id);
  const { storedImage } = await here.client.getMachine({ sandboxId: id });
  expect(storedImage?.bytes).toBeGreaterThan(3_000_000);
  expect(storedImage?.bytes).toBeLessThan(40_000_000);
  await there.client.importMachine({ spec, imageKey: key });
  const disk = join(there.artifacts.pool.dir, "machines", id, "disk-1.ext4");
  const { allocatedBytes, exclusiveBytes } = await diskBlocks(there.artifacts.native, disk);
  expect(allocatedBytes).toBeGreaterThan(100_000_000);
  expect(exclusiveBytes).toBeLessThan(60_000_000);
  await there.client.resumeMachine({ sandboxId: id });
  expect(await there.exec(id, "stat", "-c", "%s", "/root/data")).toBe("3000000");
  await here.client.destroyMachine({ sandboxId: id });
  await there.client.destroyMachine({ sandboxId: id });
});

it("an image that this gVisor cannot restore starts from its disk, with its words", async () => {
  const spec = here.spec();
  await here.client.createMachine({ spec });
  const id = spec.sandboxId;
  await here.exec(id, "sh", "-c", "echo mine > /root/mine");
  await here.client.suspendMachine({ sandboxId: id });
  // As of a host with another gVisor.
  const dir = join(here.artifacts.pool.dir, "machines", id);
  const snapshot = (await readdir(dir)).find((name) => name.startsWith("snapshot-")) ?? "";
  const note = join(dir, snapshot, "made-with");
  await storedKey(id);
  const madeWith = JSON.parse(await readFile(note, "utf8")) as object;
  await writeFile(note, JSON.stringify({ ...madeWith, platform: "p0", runscVersion: "20260101.0" }));
  const record = JSON.parse(await readFile(join(dir, "machine.json"), "utf8")) as { stored?: object };
  delete record.stored;
  await here.host.stop({ suspend: true });
  await writeFile(join(dir, "machine.json"), JSON.stringify(record));
  await here.restart();
  const key = await storedKey(id);
  const imported = await there.client.importMachine({ spec, imageKey: key });
  expect(imported.errorMessage).toMatch(/without its memory: .*saved by gVisor 20260101.0/);
  await there.client.resumeMachine({ sandboxId: id });
  expect(await there.exec(id, "cat", "/root/mine")).toBe("mine");
});

it("a checkpoint of one host is found, listed, seeded from and dropped on the other", async () => {
  const source = here.spec();
  await here.client.createMachine({ spec: source });
  await here.exec(source.sandboxId, "sh", "-c", "echo saved > /root/note; sync");
  const made = await here.checkpoint(source.sandboxId, "POST", "/v1/checkpoint", { name: "c" });
  const id = String(made.body["checkpoint_id"]);
  const { teamId } = source;
  const visible = async (): Promise<boolean> => {
    const { checkpoints } = await there.client.listCheckpoints({ teamId });
    return checkpoints.some((one) => one.id === id && one.visible);
  };
  await expect.poll(visible, { timeout: 60_000, interval: 50 }).toBe(true);
  const clone = await there.create({ checkpointId: id });
  expect(await there.exec(clone.sandboxId, "cat", "/root/note")).toBe("saved");
  await there.client.deleteCheckpoint({ teamId, id });
  expect((await here.client.listCheckpoints({ teamId, id })).checkpoints).toEqual([]);
  await expect(here.create({ checkpointId: id })).rejects.toThrow(/does not exist/);
});
