// Where programs start that must go on when the host's process ends: cloche-sys, keepers, QEMU, the guard of the lease.
//
// On a machine of its own that is where the host is: they have a session of their own, and nobody ends them. In a pod of
// Kubernetes the kubelet ends everything in the pod's cgroups, in every tree, and takes the container's file system from
// under what still runs on it. So there are two steps out of a pod:
//
//   host (pod) ──apart──▶ cloche-sys of the pod: cgroups /cloche-<tag>-apart of every tree; the pod's mounts, nft
//        └──outliving──▶ cloche-sys of the node: the same cgroups and the node's mounts; keepers, the lease's guard
//
// A tree that is not left is enough to be killed with the pod, or to keep the pod in Terminating. What is mounted from a
// file is mounted by the second one, too: a loop device knows its file by the mount that it was opened on, and one of the
// pod's is nameless when the pod has gone. Made once, when the host sets itself up. What survives a crash: the groups and
// what is in them; the next start finds both.
import { existsSync } from "node:fs";
import { mkdir, readdir, readFile, realpath, rmdir, writeFile } from "node:fs/promises";
import { join } from "node:path";

export type Command = readonly [string, ...string[]];

export interface LaunchPlace {
  /** Of a program that must not be killed in the middle of its work; our mounts. */
  apart(argv: Command): Command;
  /** Of a program that goes on for good, or starts such. Paths are the computer's own. The same as `apart`: on a machine of its own. */
  outliving(argv: Command): Command;
  /** The groups, which are empty by now, go. Repeatable. */
  remove(): Promise<void>;
}

const unchanged = (argv: Command): Command => argv;
/** On a machine of its own. */
export const besideHost: LaunchPlace = {
  apart: unchanged,
  outliving: unchanged,
  remove: async () => undefined,
};

const CGROUPS = "/sys/fs/cgroup";
/** Enters each group up to `--`, then becomes the program. */
const ENTER = 'while [ "$1" != -- ]; do echo 0 > "$1/cgroup.procs" || exit 71; shift; done; shift; exec "$@"';

/** For tests. */
export interface PodOptions {
  /** Default: all there are. */
  readonly trees?: readonly string[];
  /** A process that has the node's mounts. Default: 1, which is the node's own in a pod with `hostPID`. */
  readonly nodePid?: number;
}

/** Outside of the pod that we are in; makes the groups. */
export async function openApartFromPod(tag: string, options: PodOptions = {}): Promise<LaunchPlace> {
  const { trees = await cgroupTrees(), nodePid = 1 } = options;
  const groups = trees.map((tree) => join(tree, `cloche-${tag}-apart`));
  for (const group of groups) await makeGroup(group);
  const apart = (argv: Command): Command => ["sh", "-c", ENTER, "cloche-apart", ...groups, "--", ...argv];
  return {
    apart,
    outliving: (argv) => apart(["nsenter", "--target", String(nodePid), "--mount", "--", ...argv]),
    remove: () => removeGroups(groups),
  };
}

/** Roots of every cgroup tree: one on v2; on v1 one for each controller, and on a hybrid `unified` beside them. */
export async function cgroupTrees(mount = CGROUPS): Promise<string[]> {
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
  // On v1 nothing enters a group before it has processors and memory nodes; v2 hands them down.
  if (existsSync(join(group, "cgroup.controllers"))) return;
  for (const name of ["cpuset.cpus", "cpuset.mems"]) {
    if (!existsSync(join(group, name))) continue;
    await writeFile(join(group, name), await readFile(join(group, "..", name)));
  }
}

async function removeGroups(groups: readonly string[]): Promise<void> {
  for (const group of groups) {
    // What was started by it and has not ended yet keeps it; the next stop tries again.
    await rmdir(group).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== "ENOENT" && error.code !== "EBUSY") throw error;
    });
  }
}
