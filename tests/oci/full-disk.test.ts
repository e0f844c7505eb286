// A pull that the sandbox's disk has no room for: the service says so, the disk is as clean as before, and goes on working.
import { execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  rmSync,
  statfsSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { buildAgent } from "@cloche/agent/build";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { NativeSpawner } from "../../packages/agent/src/spawner/index.ts";
import { type AgentFixture, startAgent } from "../../packages/agent/src/testing/agent-fixture.ts";
import { guestBinary, guestOptions, makeDisk } from "../guest/guest-fixture.ts";
import {
  addBusybox,
  ImageWorkshop,
  installTools,
  isRoot,
  type Registry,
  startRegistry,
} from "./registry-fixture.ts";

const diskMb = 24;
const mebibyte = 1024 * 1024;
const tooLarge = /disk is (too )?full|larger than the sandbox's disk/;

describe.skipIf(!isRoot)("a pull onto a full disk", () => {
  let agent: AgentFixture;
  let disk: string;
  let bundle: string;
  let registry: Registry;
  let workshop: ImageWorkshop;

  beforeAll(async () => {
    installTools();
    bundle = mkdtempSync(join(tmpdir(), "cloche-bundle-"));
    await buildAgent(join(bundle, "agent.cjs"));
    registry = await startRegistry();
    workshop = new ImageWorkshop();
    const images: [string, (root: string) => void][] = [
      ["small", () => undefined],
      ["large", (root) => writeFileSync(join(root, "data"), randomBytes(2 * diskMb * mebibyte))],
      // Small on the way, too large once unpacked.
      ["packed", (root) => writeFileSync(join(root, "data"), Buffer.alloc(2 * diskMb * mebibyte, 1))],
      // Nothing foretells this one: a byte a file takes a block a file.
      ["scattered", (root) => scatter(join(root, "data"), 2 * ((diskMb * mebibyte) / 4_096))],
    ];
    for (const [name, fill] of images) {
      await workshop.build(name, {
        steps: [addBusybox, fill],
        config: ["--config.cmd", "/bin/sleep", "--config.cmd", "1000"],
      });
      await workshop.push(name, registry.address, `team/${name}:1`);
    }
    disk = mkdtempSync(join(tmpdir(), "cloche-small-disk-"));
    execFileSync("mount", ["-t", "tmpfs", "-o", `size=${diskMb}m`, "tmpfs", disk]);
    const made = makeDisk();
    cpSync(made, disk, { recursive: true, verbatimSymlinks: true });
    rmSync(made, { recursive: true });
    agent = await startAgent({
      diskPath: disk,
      spawner: new NativeSpawner(await guestBinary(), guestOptions),
      program: [process.execPath, join(bundle, "agent.cjs")],
    });
    await agent.assign({ hostname: "box" });
  });
  afterAll(async () => {
    await agent?.close();
    await registry?.close();
    workshop?.close();
    if (disk) {
      execFileSync("umount", [disk]);
      rmSync(disk, { recursive: true });
    }
    if (bundle) rmSync(bundle, { recursive: true, force: true });
  });

  const freeBytes = (): number => {
    const { bavail, bsize } = statfsSync(disk);
    return bavail * bsize;
  };
  const list = (folder: string): string[] =>
    existsSync(join(disk, "cloche", folder)) ? readdirSync(join(disk, "cloche", folder)) : [];
  const start = async (name: string): Promise<Record<string, unknown>> => {
    const image = `${registry.address}/team/${name}:1`;
    await agent.call("PUT", `/v1/services/${name}`, { body: { cmd: "", container: true, image } });
    return (await agent.call("POST", `/v1/services/${name}/start`)).json;
  };

  it.each(["large", "packed", "scattered"])(
    "fails truthfully for the %s image and leaves nothing of it",
    async (name) => {
      const before = freeBytes();
      expect(await start(name)).toMatchObject({
        status: "failed",
        phase: "",
        pid: 0,
        error: expect.stringMatching(tooLarge),
      });
      expect((await agent.call("GET", `/v1/services/${name}/logs`)).text).toMatch(tooLarge);
      expect(list("containers")).toEqual([]);
      expect(list("images/blobs/sha256")).toEqual([]);
      expect(existsSync(join(disk, "cloche/images/incoming"))).toBe(false);
      expect(before - freeBytes()).toBeLessThan(mebibyte); // its definition and its log
    },
  );

  it("still has room for what fits", async () => {
    expect(await start("small")).toMatchObject({ status: "running", error: "" });
  });
});

function scatter(folder: string, files: number): void {
  mkdirSync(folder);
  for (let file = 0; file < files; file += 1) writeFileSync(join(folder, String(file)), "x");
}
