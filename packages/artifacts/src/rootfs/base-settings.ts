/**
 * Additions to the base file system's packages: settings of a machine in a sandbox, and a user besides root.
 */
import { chmod, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { run } from "@cloche/base/run";
import { debianKeyring, debianSuite, publicMirror, publicSecurityMirror } from "../apt/debian-mirror.ts";

/** Name server of every sandbox; equal everywhere, so that a disk can move between slots and hosts. See network/. */
export const sandboxResolver = "198.18.0.53";

/** Name of the user besides root: uid and gid 1000, may become root without a password. */
const user = "user";

export async function writeSettings(root: string): Promise<void> {
  const etc = (name: string, text: string) => writeFile(join(root, "etc", name), text);
  await rm(join(root, "etc/resolv.conf"), { force: true });
  await etc("resolv.conf", `nameserver ${sandboxResolver}\noptions timeout:2 attempts:2\n`);
  await etc(
    "hosts",
    "127.0.0.1\tlocalhost\n127.0.1.1\tsandbox\n::1\tlocalhost ip6-localhost ip6-loopback\nff02::1\tip6-allnodes\nff02::2\tip6-allrouters\n",
  );
  await etc("hostname", "sandbox\n");
  await etc("default/locale", "LANG=C.UTF-8\n");
  // Empty means unknown: each sandbox gets its own id when it is assigned.
  await etc("machine-id", "");
  // The mirror of this build may be private, and sandboxes reach only public addresses.
  await rm(join(root, "etc/apt/sources.list"), { force: true });
  await etc(
    "apt/sources.list.d/debian.sources",
    [
      `Types: deb\nURIs: ${publicMirror}\nSuites: ${debianSuite} ${debianSuite}-updates\nComponents: main\nSigned-By: ${debianKeyring}\n`,
      `Types: deb\nURIs: ${publicSecurityMirror}\nSuites: ${debianSuite}-security\nComponents: main\nSigned-By: ${debianKeyring}\n`,
    ].join("\n"),
  );
  // gVisor cannot give apt's download user its own sandbox; the machine is the sandbox.
  await etc("apt/apt.conf.d/90sandbox", 'APT::Sandbox::User "root";\n');
  // As in Debian's container images. Checkpoints protect a disk here: a dpkg that flushes each file makes packages three times
  // as slow and protects no more.
  await etc("dpkg/dpkg.cfg.d/90sandbox", "force-unsafe-io\n");
  await etc("apt/apt.conf.d/91lean", 'Acquire::Languages "none";\nAPT::Keep-Downloaded-Packages "false";\n');
  // Sandboxes have no CAP_NET_RAW, and a program whose file requires a missing capability does not start. Without it ping uses
  // ICMP sockets, which every user may open.
  await run(["chroot", root, "setcap", "-r", "/usr/bin/ping"]);
  // A shell over SSH begins with its prompt, as all shells here, without a message about kernel and licence.
  await rm(join(root, "etc/update-motd.d/10-uname"), { force: true });
  await etc("motd", "");
  // Each machine has one user, so the protection of the system's Python against pip is of no use.
  await run(["sh", "-c", 'rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED', "sh", root]);
}

/**
 * Login shells start no program of their own. Debian's run `id`, and root's `mesg` too: half of the processor time of a command of
 * E2B's clients, which start a login shell for each. bash knows its user by EUID.
 */
export async function lightenLoginShells(root: string): Promise<void> {
  const profile = join(root, "etc/profile");
  await writeFile(profile, (await readFile(profile, "utf8")).replaceAll("$(id -u)", "${EUID:-$(id -u)}"));
  const own = join(root, "root/.profile");
  await writeFile(own, (await readFile(own, "utf8")).replace(/^mesg n.*\n?/m, ""));
}

/** A user for programs that refuse to run as root, and for clients that expect one. */
export async function addUser(root: string): Promise<void> {
  await run(["chroot", root, "useradd", "--create-home", "--uid", "1000", "--shell", "/bin/bash", user]);
  const rule = join(root, "etc/sudoers.d", user);
  await writeFile(rule, `${user} ALL=(ALL:ALL) NOPASSWD: ALL\n`);
  await chmod(rule, 0o440); // required by sudo
  await run(["chroot", root, "visudo", "--check", "--quiet"]);
}

/**
 * Removes the SSH host keys that Debian's package made at its installation, which all sandboxes would share. To run an SSH server of
 * one's own, run `ssh-keygen -A` first.
 */
export async function removeHostKeys(root: string): Promise<void> {
  await run(["sh", "-c", 'rm -f "$1"/etc/ssh/ssh_host_*', "sh", root]);
}
