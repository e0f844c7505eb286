// Computers differ in how /run is mounted; sandboxes' disks lie below it.
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it } from "vitest";
import { shareMounts, unshareMounts } from "../../packages/host/src/drivers/gvisor/slot-mounts.ts";

let folder: string;
const slots = (): string => join(folder, "slots");

beforeEach(() => {
  folder = mkdtempSync("/var/tmp/cloche-slots-");
  execFileSync("mount", ["-t", "tmpfs", "-o", "size=1m,noexec,nosuid,nodev", "tmpfs", folder]);
});
afterEach(async () => {
  await unshareMounts(slots());
  execFileSync("umount", [folder]);
  rmSync(folder, { recursive: true });
});

it("programs run below the slots although the file system around them is mounted noexec", async () => {
  await shareMounts(slots());
  const program = join(slots(), "program");
  writeFileSync(program, "#!/bin/sh\necho runs\n", { mode: 0o755 });
  expect(execFileSync(program).toString()).toBe("runs\n");
  // A second start finds the mount and leaves one of it.
  await shareMounts(slots());
  await unshareMounts(slots());
  expect(() => execFileSync(program)).toThrow(/EACCES/);
});
