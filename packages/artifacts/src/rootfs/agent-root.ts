/**
 * The read-only root that every sandbox's agent runs from: Node with its libraries, static busybox, the agent's files.
 * Shared by all sandboxes (one page cache), never on the user's disk: users cannot break the agent by `rm -rf /`.
 */
import { createHash } from "node:crypto";
import { chmod, copyFile, mkdir, readFile, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { inStep, type Progress } from "@cloche/base";
import { run } from "@cloche/base/run";
import { defaults } from "@cloche/protocol";
import { sandboxResolver } from "./base-settings.ts";
import { type Artifact, obtainArtifact } from "../store/store.ts";

const recipeVersion = 2;
const nodePath = "/bin/node";
/**
 * The agent needs little memory and CPU: a small young generation and one extra thread. Compiled code survives a collection, so that
 * a template can be saved without garbage (agent/src/snapshot/rehearsal.ts). No memory reducer: the guest's clock includes the
 * time since the save, so in a machine restored from a memory older than 100 s its timer was due at once, and every machine
 * began with a full collection.
 */
const nodeFlags =
  "--max-semi-space-size=1 --v8-pool-size=1 --single-threaded-gc --no-flush-bytecode --no-memory-reducer --expose-gc";
/** Folder of the agent's own files in the root. */
export const agentDir = "/agent";
/** Loaded before libc by the agent's Node under gVisor, where reading the clock is slow (native/addon/clock.c). */
export const agentClock = "clock.so";
/** Descriptor of the agent's listening socket, made before Node so that no second socket can share its port (native/guest/listen.c). */
export const listenerFd = 3;
const listen = [`${agentDir}/cloche-guest`, "listen", String(defaults.agentPort), "--"];
const agentBundle = `${agentDir}/agent.cjs`;
/** Everything that may be mounted; runsc cannot make directories in a read-only root. */
const mountPoints = ["dev", "proc", "sys", "run", "tmp", "mnt", "root"];

export interface AgentRootInputs {
  /** Node's libraries are taken from it, and it has the Node binary itself. */
  readonly rootfs: Artifact;
  readonly nodeVersion: string;
  /** Path of the static binary. */
  readonly busybox: string;
  /** The bundled agent (packages/agent/build.ts). */
  readonly bundle: string;
  /** The agent's native programs and addons: name in agentDir to path of the binary. */
  readonly programs: Readonly<Record<string, string>>;
}

export interface AgentRoot {
  /** Content key: templates of a booted agent are keyed by it. */
  readonly key: string;
  readonly dir: string;
  /** Command of the agent in that root; the path of its boot config is appended. */
  readonly argv: readonly string[];
  readonly env: readonly string[];
}

export function obtainAgentRoot(
  cache: string,
  inputs: AgentRootInputs,
  progress: Progress,
): Promise<AgentRoot> {
  return inStep(progress, "agent root", "run the command again", async (detail) => {
    const hashes: Record<string, string> = { [agentBundle]: await hashOf(inputs.bundle) };
    for (const [name, path] of Object.entries(inputs.programs)) hashes[name] = await hashOf(path);
    const artifact = await obtainArtifact(
      cache,
      {
        kind: "agent-root",
        inputs: {
          recipe: recipeVersion,
          rootfs: inputs.rootfs.key,
          node: inputs.nodeVersion,
          flags: nodeFlags,
          busybox: await hashOf(inputs.busybox),
          hashes: Object.entries(hashes).sort(),
        },
        build: (dir) => assemble(dir, inputs),
      },
      (_step, text) => detail(text ?? ""),
    );
    return {
      key: artifact.key,
      dir: artifact.path,
      argv: [...listen, nodePath, ...nodeFlags.split(" "), agentBundle],
      env: ["PATH=/bin", "HOME=/root", "LANG=C.UTF-8"],
    };
  });
}

async function assemble(dir: string, inputs: AgentRootInputs): Promise<void> {
  const at = (path: string) => join(dir, path);
  await chmod(dir, 0o755);
  for (const name of [...mountPoints, "bin", "etc", agentDir]) await mkdir(at(name), { recursive: true });
  await chmod(at("tmp"), 0o1777);
  await chmod(at("root"), 0o700);

  const system = join(inputs.rootfs.path, "fs");
  await install(join(system, "usr/local/bin/node"), at(nodePath), 0o755);
  for (const library of await librariesOf(system, "/usr/local/bin/node"))
    await install(join(system, library), at(library), 0o755);

  await install(inputs.busybox, at("bin/busybox"), 0o755);
  await run(["chroot", dir, "/bin/busybox", "--install", "-s", "/bin"]);

  await install(inputs.bundle, at(agentBundle), 0o644);
  for (const [name, path] of Object.entries(inputs.programs))
    await install(path, at(join(agentDir, name)), 0o755);

  await writeFile(at("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n");
  await writeFile(at("etc/group"), "root:x:0:\n");
  await writeFile(at("etc/hosts"), "127.0.0.1\tlocalhost\n::1\tlocalhost\n");
  await writeFile(at("etc/nsswitch.conf"), "hosts: files dns\n");
  await writeFile(at("etc/resolv.conf"), `nameserver ${sandboxResolver}\n`);
  const { stdout } = await run(["chroot", dir, nodePath, "--version"]);
  if (stdout.trim() !== inputs.nodeVersion)
    throw new Error(`Node in the agent root says ${stdout.trim()}, not ${inputs.nodeVersion}`);
}

/** Paths, in `root`, of the shared libraries and the loader that a program of it needs. */
async function librariesOf(root: string, program: string): Promise<string[]> {
  const { stdout } = await run(["chroot", root, "/usr/bin/ldd", program]);
  const libraries = stdout.split("\n").flatMap((line) => {
    // "libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x…)" or "/lib64/ld-linux-x86-64.so.2 (0x…)"
    const path = /(?:=> )?(\/\S+) \(0x/.exec(line)?.[1];
    return path ? [path] : [];
  });
  if (libraries.length === 0 || stdout.includes("not found"))
    throw new Error(`libraries of ${program}: ${stdout}`);
  return libraries;
}

async function install(from: string, to: string, mode: number): Promise<void> {
  await mkdir(dirname(to), { recursive: true });
  await copyFile(from, to);
  await chmod(to, mode);
}

async function hashOf(path: string): Promise<string> {
  return createHash("sha256")
    .update(await readFile(path))
    .digest("hex");
}
