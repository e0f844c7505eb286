/**
 * Conditions that a pod must meet so that machines outlive it, checked before anything is started. Each was found by an attempt
 * without it, after which a machine died, or lived and could not be adopted (docs/adr/0031-machines-outlive-the-pod.md).
 *
 * Process 1 represents the node: with `hostPID` it is the node's own. A path is the node's if it is the same inode through
 * /proc/1/root. New mounts below it reach the other side if both mounts are in one peer group.
 */
import { readFile, readlink, stat } from "node:fs/promises";
import { ClocheError } from "@cloche/protocol";

export interface PodPlaces {
  /** Paths that must be the node's, and below which the host's mounts must reach the node and the next pod. */
  readonly shared: readonly string[];
  /** Paths that must be the node's. */
  readonly same: readonly string[];
}

/** The kernel's files, replaced in tests. */
export interface PodView {
  /** Text of a file of /proc. */
  read(path: string): Promise<string>;
  /** For example `mnt:[4026531840]`. */
  link(path: string): Promise<string>;
  /** Device and inode; undefined: no such path. */
  inode(path: string): Promise<string | undefined>;
}

const kernel: PodView = {
  read: (path) => readFile(path, "utf8"),
  link: (path) => readlink(path),
  inode: (path) =>
    stat(path).then(
      ({ dev, ino }) => `${dev}:${ino}`,
      () => undefined,
    ),
};

/** Throws failed_precondition, which names every unmet condition and the field of the pod that would meet it. */
export async function requirePodConditions(places: PodPlaces, view: PodView = kernel): Promise<void> {
  const problems = await podProblems(places, view);
  if (problems.length === 0) return;
  throw new ClocheError(
    "failed_precondition",
    `CLOCHE_HOST_IN_POD is set, but machines would not outlive this pod: ${problems.join("; ")}`,
  );
}

export async function podProblems(places: PodPlaces, view: PodView = kernel): Promise<string[]> {
  const isNodes = async (kind: string): Promise<boolean> =>
    (await view.link(`/proc/1/ns/${kind}`)) === (await view.link(`/proc/self/ns/${kind}`));
  if (await isNodes("mnt"))
    return ["process 1 has this pod's mounts, so it is not the node's (hostPID: true)"];
  const problems: string[] = [];
  if (!(await isNodes("net")))
    problems.push("the network is not the node's (hostNetwork: true, hostPID: true)");
  const [own, nodes] = [await view.read("/proc/self/mountinfo"), await view.read("/proc/1/mountinfo")];
  for (const path of [...places.shared, ...places.same]) {
    const inode = await view.inode(path);
    if (inode === undefined || inode !== (await view.inode(`/proc/1/root${path}`))) {
      problems.push(`${path} is not the node's ${path} (a hostPath volume mounted at the same path)`);
    } else if (places.shared.includes(path)) {
      const group = peerGroup(own, path);
      if (group === undefined || group !== peerGroup(nodes, path)) {
        const why = "(mountPropagation: Bidirectional, on a mount that the node shares)";
        problems.push(`mounts below ${path} do not reach the node ${why}`);
      }
    }
  }
  return problems;
}

interface MountPoint {
  readonly id: string;
  readonly parent: string;
  readonly point: string;
  readonly group: string | undefined;
}

/** Peer group of the mount where a walk along `path` ends. Like the kernel's, the walk skips mounts hidden under others. */
function peerGroup(mountinfo: string, path: string): string | undefined {
  const mounts = mountinfo.split("\n").map(parseMount);
  const ids = new Set(mounts.map(({ id }) => id));
  let current = mounts.find(({ parent, point }) => point === "/" && !ids.has(parent));
  while (current !== undefined) {
    const { id } = current;
    const met = mounts.filter(({ parent, point }) => parent === id && isOnWay(point, path));
    const next = met.toSorted((one, other) => one.point.length - other.point.length)[0];
    if (next === undefined) return current.group;
    current = next;
  }
  return undefined;
}

/** 36 35 98:0 /mnt1 /mnt2 rw,noatime shared:7 master:1 - ext3 /dev/root rw */
function parseMount(line: string): MountPoint {
  const [id = "", parent = "", , , point = "", , ...optional] = (line.split(" - ")[0] ?? "").split(" ");
  return { id, parent, point, group: optional.find((field) => field.startsWith("shared:")) };
}

const isOnWay = (point: string, path: string): boolean =>
  point === "/" || path === point || path.startsWith(`${point}/`);
