import { mkdtemp, readFile, rm, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { vmArch } from "@cloche/artifacts";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { ImageMismatchError } from "../driver.ts";
import { hardwareKey, type VmPlatform } from "./platform.ts";
import { openSnapshot, sealSnapshot, type SnapshotManifest, snapshotPaths } from "./snapshot-files.ts";

const platform = {
  arch: vmArch("x64"),
  accelerator: "tcg",
  qemuVersion: "7.2.22",
  readOnlyMemory: false,
  hostCpu: "",
} as VmPlatform;
const facts = {
  shape: { vcpus: 1, memoryMb: 2 },
  bootedFrom: { kernel: "k", firstRoot: "f", systemImage: "s" },
  diskBytes: 0,
  createdAt: "2026-01-01T00:00:00.000Z",
  agentPort: 61_070,
};
let dir = "";

beforeEach(async () => {
  dir = await mkdtemp(`${tmpdir()}/snapshot-test-`);
  const paths = snapshotPaths(dir);
  await writeFile(paths.memory, Buffer.alloc(2 * 1024 * 1024));
  await writeFile(paths.devices, "device state");
  await writeFile(paths.system, "system");
  await sealSnapshot(dir, platform, facts);
});
afterEach(() => rm(dir, { recursive: true, force: true }));

const refusal = (): Promise<string> =>
  openSnapshot(dir, platform).then(
    () => "accepted",
    (error: Error) => error.message,
  );
async function changeManifest(change: Partial<SnapshotManifest>): Promise<void> {
  const { manifest } = snapshotPaths(dir);
  const before = JSON.parse(await readFile(manifest, "utf8")) as SnapshotManifest;
  await writeFile(manifest, JSON.stringify({ ...before, ...change }));
}

describe("openSnapshot", () => {
  it("takes what was sealed", async () => {
    expect((await openSnapshot(dir, platform)).shape).toEqual(facts.shape);
  });

  it("refuses one of another QEMU for good, naming both", async () => {
    const newer = { ...platform, qemuVersion: "9.2.0" };
    await expect(openSnapshot(dir, newer)).rejects.toBeInstanceOf(ImageMismatchError);
    await expect(openSnapshot(dir, newer)).rejects.toThrow(/QEMU 7\.2\.22 with tcg.*QEMU 9\.2\.0 with tcg/);
  });

  it("refuses one of another accelerator", async () => {
    await expect(openSnapshot(dir, { ...platform, accelerator: "kvm" })).rejects.toThrow(/with kvm/);
  });

  it("refuses a newer format", async () => {
    await changeManifest({ version: 99 });
    expect(await refusal()).toContain("format 99");
  });

  it("refuses truncated memory", async () => {
    await truncate(snapshotPaths(dir).memory, 1_000_000);
    expect(await refusal()).toContain("its memory is incomplete");
  });

  it("refuses changed or missing device state", async () => {
    await writeFile(snapshotPaths(dir).devices, "device stat");
    expect(await refusal()).toContain("its device state is not what was written");
    await rm(snapshotPaths(dir).devices);
    expect(await refusal()).toContain("its device state is not what was written");
  });

  it("refuses a missing system image", async () => {
    await rm(snapshotPaths(dir).system);
    expect(await refusal()).toContain("its system image is missing");
  });

  it.each<[string, object]>([
    ["a port with rules of nft behind it", { agentPort: "61070 accept\nRULES\ntouch /tmp/x" }],
    ["no port", { agentPort: 0 }],
    ["processors below one", { shape: { vcpus: -1, memoryMb: 2 } }],
    ["memory with an option behind it", { shape: { vcpus: 1, memoryMb: "2,share=on" } }],
  ])("refuses a description with %s, however its key was made", async (_, change) => {
    const { shape = facts.shape } = change as Partial<SnapshotManifest>;
    await changeManifest({ ...change, hardwareKey: hardwareKey(platform, shape) });
    expect(await refusal()).toContain("its description is not one of ours");
  });

  it.each([
    ["nothing", undefined, "it was never finished"],
    ["no JSON", "{", "its description cannot be read"],
    ["something else", "{}", "its description is not one of ours"],
    ["null", "null", "its description is not one of ours"],
    ["endless text", " ".repeat(70_000), "its description is too long"],
  ])("refuses a manifest that is %s, without naming paths", async (_, text, why) => {
    const { manifest } = snapshotPaths(dir);
    if (text === undefined) await rm(manifest);
    else await writeFile(manifest, text);
    expect(await refusal()).toContain(why);
    expect(await refusal()).not.toContain(dir);
  });
});
