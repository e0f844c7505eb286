/**
 * The place where programs start that must outlive the host's process: cloche-sys, keepers, QEMU, the guard of the lease.
 *
 * Outside Kubernetes that is the host's own place: the programs have their own session, and nothing ends them. In a pod the
 * kubelet kills every process in the pod's cgroups, in every tree, and removes the container's file system under programs
 * that still run. So two steps lead out of a pod:
 *
 *   host (pod) ──apart──▶ cloche-sys of the pod: cgroups /cloche-<tag>-apart of every tree; the pod's mounts, nft
 *        └──outliving──▶ cloche-sys of the node: the same cgroups and the node's mounts; keepers, the lease's guard
 *
 * A program that stays in one of the pod's trees is killed with the pod, or keeps the pod in Terminating. The second one also
 * mounts image files: a loop device names its file by the mount that it was opened on, and the pod's mounts have no name
 * once the pod is gone. Made once, at the host's set-up. The groups and their processes survive a crash; the next start
 * finds both.
 */
import { existsSync } from "node:fs";
import { mkdir, readdir, readFile, realpath, rmdir, writeFile } from "node:fs/promises";
import { join } from "node:path";

export type Command = readonly [string, ...string[]];

export interface LaunchPlace {
  /** Command for a program that must not be killed in the middle of its work. It has our mounts. */
  apart(argv: Command): Command;
  /** Command for a program that outlives us, or starts such. Paths are the computer's. Equal to `apart` outside a pod. */
  outliving(argv: Command): Command;
  /** Removes the groups that are empty. Repeatable. */
  remove(): Promise<void>;
}

const unchanged = (argv: Command): Command => argv;
/** The place outside a pod. */
export const besideHost: LaunchPlace = {
  apart: unchanged,
  outliving: unchanged,
  remove: async () => undefined,
};

const cgroups = "/sys/fs/cgroup";
/** Shell script: enters each group up to `--`, then executes the program. */
const enter = 'while [ "$1" != -- ]; do echo 0 > "$1/cgroup.procs" || exit 71; shift; done; shift; exec "$@"';

/** For tests. */
export interface PodOptions {
  /** Default: all trees. */
  readonly trees?: readonly string[];
  /** A process that has the node's mounts. Default: 1, which is the node's own in a pod with `hostPID`. */
  readonly nodePid?: number;
}

/** The place outside our pod. Makes the groups. */
export async function openApartFromPod(tag: string, options: PodOptions = {}): Promise<LaunchPlace> {
  const { trees = await cgroupTrees(), nodePid = 1 } = options;
  const groups = trees.map((tree) => join(tree, `cloche-${tag}-apart`));
  for (const group of groups) await makeGroup(group);
  const apart = (argv: Command): Command => ["sh", "-c", enter, "cloche-apart", ...groups, "--", ...argv];
  return {
    apart,
    outliving: (argv) => apart(["nsenter", "--target", String(nodePid), "--mount", "--", ...argv]),
    remove: () => removeGroups(groups),
  };
}

/** Roots of every cgroup tree: one on v2; on v1 one for each controller, and on a hybrid `unified` beside them. */
export async function cgroupTrees(mount = cgroups): Promise<string[]> {
  if (existsSync(join(mount, "cgroup.controllers"))) return [mount];
  const trees = new Set<string>();
  for (const name of await readdir(mount)) {
    // `cpu` is a link to `cpu,cpuacct`.
    const tree = await realpath(join(mount, name));
    if (existsSync(join(tree, "cgroup.procs"))) trees.add(tree);
  }
  return [...trees];
}

async function makeGroup(group: string): Promise<void> {
  await mkdir(group, { recursive: true });
  // On v1 a process can enter a group only once it has CPUs and memory nodes; v2 inherits them.
  if (existsSync(join(group, "cgroup.controllers"))) return;
  for (const name of ["cpuset.cpus", "cpuset.mems"]) {
    if (!existsSync(join(group, name))) continue;
    await writeFile(join(group, name), await readFile(join(group, "..", name)));
  }
}

async function removeGroups(groups: readonly string[]): Promise<void> {
  for (const group of groups) {
    // A program that has not ended yet keeps the group; the next stop tries again.
    await rmdir(group).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== "ENOENT" && error.code !== "EBUSY") throw error;
    });
  }
}
