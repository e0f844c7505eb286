// What the base file system has besides its packages: the settings of a machine in a sandbox, and the user who is not root.
import { chmod, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { run } from "../sys/run.ts";
import { DEBIAN_KEYRING, DEBIAN_SUITE, PUBLIC_MIRROR, PUBLIC_SECURITY_MIRROR } from "./debian-mirror.ts";

/** Name server of every sandbox, the same everywhere so that a disk can move between slots and hosts. See network/. */
export const SANDBOX_RESOLVER = "198.18.0.53";

/** Name of the user besides root, uid and gid 1000, who may become root without a password. */
const USER = "user";

export async function writeSettings(root: string): Promise<void> {
  const etc = (name: string, text: string) => writeFile(join(root, "etc", name), text);
  await rm(join(root, "etc/resolv.conf"), { force: true });
  await etc("resolv.conf", `nameserver ${SANDBOX_RESOLVER}\noptions timeout:2 attempts:2\n`);
  await etc(
    "hosts",
    "127.0.0.1\tlocalhost\n127.0.1.1\tsandbox\n::1\tlocalhost ip6-localhost ip6-loopback\nff02::1\tip6-allnodes\nff02::2\tip6-allrouters\n",
  );
  await etc("hostname", "sandbox\n");
  await etc("default/locale", "LANG=C.UTF-8\n");
  // Empty means "not yet known": each sandbox gets its own when it is assigned.
  await etc("machine-id", "");
  // The mirror this machine builds from may be private; sandboxes reach public addresses only.
  await rm(join(root, "etc/apt/sources.list"), { force: true });
  await etc(
    "apt/sources.list.d/debian.sources",
    [
      `Types: deb\nURIs: ${PUBLIC_MIRROR}\nSuites: ${DEBIAN_SUITE} ${DEBIAN_SUITE}-updates\nComponents: main\nSigned-By: ${DEBIAN_KEYRING}\n`,
      `Types: deb\nURIs: ${PUBLIC_SECURITY_MIRROR}\nSuites: ${DEBIAN_SUITE}-security\nComponents: main\nSigned-By: ${DEBIAN_KEYRING}\n`,
    ].join("\n"),
  );
  // gVisor cannot give apt's download user its own sandbox; the machine is the sandbox.
  await etc("apt/apt.conf.d/90sandbox", 'APT::Sandbox::User "root";\n');
  // Debian's own container images have these too. A disk here is as new as its last checkpoint: a dpkg that flushes each file
  // to it makes a package three times as slow and saves nothing that a checkpoint does not.
  await etc("dpkg/dpkg.cfg.d/90sandbox", "force-unsafe-io\n");
  await etc("apt/apt.conf.d/91lean", 'Acquire::Languages "none";\nAPT::Keep-Downloaded-Packages "false";\n');
  // Sandboxes have no CAP_NET_RAW, and a program whose file asks for what it cannot have does not start. Without it ping uses
  // ICMP sockets, which every user may open.
  await run(["chroot", root, "setcap", "-r", "/usr/bin/ping"]);
  // A shell over SSH begins with its prompt, as every other shell here: no words about the kernel and the licence.
  await rm(join(root, "etc/update-motd.d/10-uname"), { force: true });
  await etc("motd", "");
  // One user per machine: the guard against pip in the system's Python only gets in the way.
  await run(["sh", "-c", 'rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED', "sh", root]);
}

/** Somebody for programs that refuse to be root, and for the clients that expect such a user. */
export async function addUser(root: string): Promise<void> {
  await run(["chroot", root, "useradd", "--create-home", "--uid", "1000", "--shell", "/bin/bash", USER]);
  const rule = join(root, "etc/sudoers.d", USER);
  await writeFile(rule, `${USER} ALL=(ALL:ALL) NOPASSWD: ALL\n`);
  await chmod(rule, 0o440); // sudo reads no other
  await run(["chroot", root, "visudo", "--check", "--quiet"]);
}

/**
 * Debian's package makes SSH host keys where it is installed, which every sandbox would share. Who wants a server of its own runs
 * `ssh-keygen -A` first.
 */
export async function removeHostKeys(root: string): Promise<void> {
  await run(["sh", "-c", 'rm -f "$1"/etc/ssh/ssh_host_*', "sh", root]);
}
