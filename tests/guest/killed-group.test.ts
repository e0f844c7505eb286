// The whole process group of an agent is killed, as a test runner or a terminal does: its guest leaves no cgroup.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, rmSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";
import { cgroupVersion } from "../../packages/host/src/drivers/cgroup.ts";
import { guestBinary, isGvisor, isRoot, makeDisk, until } from "./guest-fixture.ts";

/** Starts a guest as an agent does, and prints a byte once it serves files. */
const agent = `
  const [, binary, root] = process.argv;
  const words = ["guest", "--root", root, "--bind-ro", "/usr:/usr", "--max-processes", "64"];
  const guest = require("node:child_process").spawn(binary, words, { stdio: ["ignore", "ignore", "inherit", "pipe", "pipe"] });
  guest.stdio[4].once("data", () => process.stdout.write("."));
`;

if (isRoot && !isGvisor)
  it("leaves no cgroup", async () => {
    const disk = makeDisk();
    const argv = ["-e", agent, await guestBinary(), join(disk, "fs")];
    const child = spawn(process.execPath, argv, { detached: true, stdio: ["ignore", "pipe", "inherit"] });
    const pid = child.pid ?? 0;
    const group = join("/sys/fs/cgroup", cgroupVersion() === 2 ? "" : "pids", `cloche-guests-${pid}`);
    await once(child.stdout, "data");
    expect(existsSync(group)).toBe(true);
    process.kill(-pid, "SIGKILL");
    await until("the cgroup is removed", () => !existsSync(group));
    rmSync(disk, { recursive: true, force: true });
  });
