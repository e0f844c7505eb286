// A machine's disk whose journal the kernel gave up, because the image below it could not grow: it is noticed once there is room.
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { silentLog } from "@cloche/base";
import { afterEach, beforeEach, expect, it } from "vitest";
import { DiskWatch, hasRoom } from "../../packages/host/src/drivers/disk-watch.ts";

const MIB = 1024 * 1024;
let dir: string;
const pool = (): string => join(dir, "small", "pool");
const mountPoint = (): string => join(dir, "disk");
const sh = (command: string): string =>
  execFileSync("sh", ["-ec", command], { cwd: dir, encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] });
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "cloche-disk-watch-"));
  mkdirSync(join(dir, "small"));
  sh("mount -t tmpfs -o size=160m tmpfs small; mkdir small/pool disk");
  sh("truncate -s 256M small/pool/image; mkfs.ext4 -q -O ^metadata_csum small/pool/image");
  sh("mount -o loop,errors=remount-ro small/pool/image disk");
});
afterEach(() => {
  sh("umount disk; umount -l small");
  rmSync(dir, { recursive: true });
});

it("ends the machine whose disk takes no more writes, when there is room, and no other", async () => {
  const ended: string[] = [];
  const machine = (id: string, place: string) => ({
    id,
    mountPoint: place,
    endForDisk: async () => void ended.push(id),
  });
  // One goes just then, and the file system of another is whole.
  const machines = [
    machine("gone", join(dir, "gone")),
    machine("stuck", mountPoint()),
    machine("whole", join(dir, "small")),
    { id: "virtual", diskFailed: true, endForDisk: async () => void ended.push("virtual") },
    { id: "whole too", diskFailed: false, endForDisk: async () => void ended.push("whole too") },
  ];
  const watch = new DiskWatch(silentLog, () => hasRoom(pool()));
  await watch.check(machines.slice(0, 3));
  expect(ended).toEqual([]);

  sh("dd if=/dev/zero of=small/filler bs=1M 2>/dev/null || true");
  sh("mkdir $(seq -f disk/%g 500); sync");
  await watch.check(machines);
  expect(ended).toEqual([]);

  rmSync(join(dir, "small", "filler"));
  await watch.check(machines);
  expect(ended).toEqual(["stuck", "virtual"]);
  expect(() => writeFileSync(join(mountPoint(), "now"), Buffer.alloc(MIB))).toThrow(/EROFS|EIO/);
});
