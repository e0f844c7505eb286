// What lies in memory and what on the disk in the users' guest, and what /run holds at its start.
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { NativeSpawner } from "../../packages/agent/src/spawner/index.ts";
import { guestBinary, guestOptions, isRoot, makeDisk } from "./guest-fixture.ts";

let disk: string;
let spawner: NativeSpawner;
beforeEach(async () => {
  if (!isRoot) return;
  disk = makeDisk();
  for (const folder of ["tmpfiles.d", "systemd/system"])
    mkdirSync(join(disk, "fs/etc", folder), { recursive: true });
  spawner = new NativeSpawner(await guestBinary(), guestOptions);
});
afterEach(async () => {
  await spawner?.detach();
  rmSync(disk, { recursive: true, force: true });
});

const etc = (path: string, text: string): void => writeFileSync(join(disk, "fs/etc", path), text);

async function shell(script: string): Promise<string> {
  let text = "";
  const { exited } = spawner.guest.launch({
    argv: ["sh", "-c", script],
    env: { PATH: "/bin:/usr/bin" },
    onOutput: (_stream, chunk) => void (text += chunk.toString()),
  });
  await exited;
  return text;
}

describe.skipIf(!isRoot)("/run at the start of a guest", () => {
  it("has what tmpfiles.d and the units' runtime directories say, with their owners and modes", async () => {
    etc(
      "tmpfiles.d/package.conf",
      [
        "# a comment",
        "d /run/postgresql 2775 ann crew - -",
        "D /var/run/deep/er 0700 1000 2000 10d",
        "f+ /run/motd 0640 root ann - hello\\nthere",
        'L "/run/a link" - - - - /etc/hosts',
        "p+ /run/pipe 0622 ann - - -",
        "d\t/run/plain",
      ].join("\n"),
    );
    etc(
      "systemd/system/ssh.service",
      "[Service]\nUser=ann\nRuntimeDirectory=sshd sshd/sub:alias\nRuntimeDirectoryMode=0750\n",
    );
    await spawner.attach(disk);
    expect(
      await shell(
        "cd /run; stat -c '%A %U:%G %n' postgresql deep deep/er motd pipe plain sshd sshd/sub lock; cat motd; readlink 'a link'",
      ),
    ).toBe(`drwxrwsr-x ann:crew postgresql
drwxr-xr-x root:root deep
drwx------ ann:crew deep/er
-rw-r----- root:ann motd
prw--w--w- ann:root pipe
drwxr-xr-x root:root plain
drwxr-x--- ann:ann sshd
drwxr-x--- ann:ann sshd/sub
drwxrwxrwt root:root lock
hello
there/etc/hosts
`);
  });

  it("leaves out what is not for it, and nothing of it leads out of /run", async () => {
    etc(
      "tmpfiles.d/odd.conf",
      [
        "L /run/out - - - - /etc",
        "d /run/out/made",
        "f /run/out/written - - - - x",
        "d /run/../etc/dots",
        "d /run/./dot",
        "d /etc/elsewhere",
        "d /run/nobody 0755 stranger - -",
        "d /run/%i",
        "d /run/wrong-mode 99x",
        "d",
        `d /run/${"x".repeat(300)}`,
        'F! /run/nologin 0644 - - - "System is booting up"',
        "d /run/after",
      ].join("\n"),
    );
    etc("tmpfiles.d/large.conf", `d /run/large\n${"#".repeat(70_000)}`);
    execFileSync("mkfifo", [join(disk, "fs/etc/tmpfiles.d/fifo.conf")]);
    symlinkSync("/dev/zero", join(disk, "fs/etc/tmpfiles.d/zero.conf"));
    etc("systemd/system/other@.service", "RuntimeDirectory=%i\nUser=stranger\n");
    await spawner.attach(disk);
    // The /usr of this machine may have lines of its own.
    const names = "after dot dots elsewhere large made nobody nologin out strange wrong-mode written";
    expect(await shell(`cd /run; ls -d ${names} x* 2> /dev/null`)).toBe("after\nout\nwrong-mode\n");
    expect(await shell("cd /etc; ls")).toBe("group\npasswd\nsystemd\ntmpfiles.d\n");
  });

  it("is there again after the disk was swapped, while /tmp and /var/tmp are the disk's", async () => {
    etc("tmpfiles.d/package.conf", "d /run/postgresql 0755 ann ann");
    await spawner.attach(disk);
    await shell("touch /tmp/kept /var/tmp/kept /run/lost /dev/shm/lost; rmdir /run/postgresql");
    expect(await shell("stat -c %A /tmp /var/tmp /dev/shm")).toBe("drwxrwxrwt\n".repeat(3));
    await spawner.detach();
    expect(existsSync(join(disk, "fs/tmp/kept"))).toBe(true);
    await spawner.attach(disk);
    expect(await shell("ls /tmp /var/tmp /dev/shm; cd /run; ls -d lock lost postgresql 2> /dev/null")).toBe(
      "/dev/shm:\n\n/tmp:\nkept\n\n/var/tmp:\nkept\nlock\npostgresql\n",
    );
  });
});

describe.skipIf(!isRoot)("the tree of an exec", () => {
  it("is its program and all that it started, whatever session that is in, and nobody else", async () => {
    await spawner.attach(disk);
    const start = async (script: string): Promise<Awaited<ReturnType<typeof spawner.guest.spawn>>> =>
      spawner.guest.spawn({ argv: ["sh", "-c", script], env: { PATH: "/bin:/usr/bin" }, tree: "hold" });
    const one = await start("setsid sleep 1000 & setsid sh -c 'sleep 1000 & sleep 1000' & wait");
    const other = await start("exec sleep 1000");
    const size = async (): Promise<number> => {
      for (;;) {
        const { length } = one.tree();
        if (length >= 5) return length;
        await new Promise((resolve) => setTimeout(resolve, 5));
      }
    };
    expect(await size()).toBe(5);
    expect(other.tree()).toHaveLength(1);
    expect(one.tree()).not.toContain(other.tree()[0]);
    await Promise.all([one.kill(), other.kill()]);
    expect(one.tree()).toEqual([]);
  });
});
