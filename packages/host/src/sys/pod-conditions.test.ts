import { describe, expect, it } from "vitest";
import { podProblems, type PodView, requirePodConditions } from "./pod-conditions.ts";

const home = "/var/lib/cloche";
const cgroups = "/sys/fs/cgroup";
const places = { shared: [home], same: [cgroups] };

/** A pod that meets all conditions, except for the test's changes. */
function pod(change: {
  links?: Record<string, string>;
  inodes?: Record<string, string | undefined>;
  homeMount?: string;
  nodeMounts?: string;
}): PodView {
  const links: Record<string, string> = {
    "/proc/1/ns/mnt": "mnt:[1]",
    "/proc/self/ns/mnt": "mnt:[7]",
    "/proc/1/ns/net": "net:[1]",
    "/proc/self/ns/net": "net:[1]",
    ...change.links,
  };
  const inodes: Record<string, string | undefined> = {
    [home]: "1:5",
    [`/proc/1/root${home}`]: "1:5",
    [cgroups]: "9:1",
    [`/proc/1/root${cgroups}`]: "9:1",
    ...change.inodes,
  };
  const homeMount = change.homeMount ?? "shared:1";
  const texts: Record<string, string> = {
    "/proc/1/mountinfo": change.nodeMounts ?? "20 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n",
    "/proc/self/mountinfo": [
      "40 39 0:50 / / rw - overlay overlay rw",
      `41 40 8:1 ${home} ${home} rw ${homeMount} - ext4 /dev/sda1 rw`,
      "42 40 0:9 / /sys/fs/cgroup rw master:3 - cgroup2 cgroup rw",
      "",
    ].join("\n"),
  };
  return {
    read: async (path) => texts[path] ?? "",
    link: async (path) => links[path] ?? "",
    inode: async (path) => inodes[path],
  };
}

describe("what a pod must have", () => {
  it("is all there", async () => {
    expect(await podProblems(places, pod({}))).toEqual([]);
  });

  it.each([
    ["the pod's own processes alone", { links: { "/proc/1/ns/mnt": "mnt:[7]" } }, /hostPID: true/],
    ["a network of its own", { links: { "/proc/self/ns/net": "net:[2]" } }, /hostNetwork: true/],
    // shareProcessNamespace: process 1 is the pod's pause container, which has no home.
    ["a process 1 without the home", { inodes: { [`/proc/1/root${home}`]: undefined } }, /hostPath/],
    ["a home of its own", { inodes: { [home]: "1:6" } }, /\/var\/lib\/cloche is not the node's/],
    ["cgroups of its own", { inodes: { [cgroups]: "9:2" } }, /\/sys\/fs\/cgroup is not the node's/],
    ["mounts of its own", { homeMount: "" }, /Bidirectional/],
    ["the node's mounts one way", { homeMount: "master:1" }, /Bidirectional/],
    ["mounts shared with others than the node", { homeMount: "shared:4" }, /Bidirectional/],
  ] as const)("is missed with %s", async (_, change, words) => {
    const problems = await podProblems(places, pod(change));
    expect(problems).toHaveLength(1);
    expect(problems[0]).toMatch(words);
  });

  it("is judged by the mount that a path leads to, not by one that lies under it", async () => {
    const nodeMounts = [
      "20 1 8:1 / / rw shared:9 - ext4 /dev/sda1 rw",
      `21 20 8:1 /old ${home} rw shared:8 - ext4 /dev/sda1 rw`,
      "22 20 0:5 / /var rw shared:1 - ext4 /dev/sdb1 rw",
      "",
    ].join("\n");
    expect(await podProblems(places, pod({ nodeMounts }))).toEqual([]);
  });

  it("is named in one error, each with the field that meets it", async () => {
    const view = pod({ inodes: { [home]: "1:6" }, links: { "/proc/self/ns/net": "net:[2]" } });
    await expect(requirePodConditions(places, view)).rejects.toMatchObject({
      code: "failed_precondition",
      message: expect.stringMatching(/hostNetwork: true.*; .*hostPath/),
    });
  });
});
