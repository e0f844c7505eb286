// A pod as the kubelet makes and ends it, without Kubernetes: cgroups of its own in every tree, mounts of its own, and an
// end that kills all in them. What the host started to outlive it goes on, and nothing of it is left in the pod.
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmdirSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { identify } from "../../packages/host/src/drivers/process-identity.ts";
import { mountAt } from "../../packages/host/src/sys/mounts.ts";
import { run } from "../../packages/base/src/commands/run.ts";
import { cgroupTrees } from "../../packages/host/src/sys/launch-place.ts";
import { cannotRun, inHome, type Lab, openLab } from "./lab.ts";

const HOST = new URL("pod-host.ts", import.meta.url).pathname;
const ENTER =
  'for g in $PODS; do echo 0 > "$g/cgroup.procs"; done; exec unshare --mount --propagation slave -- "$@"';

let lab: Lab;
let trees: string[];
let pods: string[];
let started: number[];

describe.skipIf(cannotRun)("a program that outlives the pod of its host", () => {
  beforeEach(async () => {
    lab = await openLab();
    trees = await cgroupTrees();
    pods = trees.map((tree) => join(tree, `kubepods-${lab.tag}`));
    started = [];
    for (const pod of pods) makeGroup(pod);
  });
  afterEach(async () => {
    for (const pid of started) if (existsSync(`/proc/${pid}`)) process.kill(pid, "SIGKILL");
    await endPod();
    for (const tree of trees) {
      const group = join(tree, `cloche-${lab.tag}-apart`);
      if (existsSync(group)) await removed(group);
    }
    await lab.close();
  });

  it("lives on, in no cgroup of the pod and with the node's mounts", async () => {
    const { host, pid } = await startPod([]);
    const before = await identify(pid);
    expect(before).toBeDefined();
    const ended = once(host, "exit");
    await endPod();
    expect((await ended)[1]).toBe("SIGKILL");
    expect(await identify(pid)).toEqual(before);
    expect(readlinkSync(`/proc/${pid}/ns/mnt`)).toBe(readlinkSync("/proc/self/ns/mnt"));
    expect(readFileSync(`/proc/${pid}/cgroup`, "utf8")).not.toContain("kubepods");
    // Nothing keeps the pod in Terminating.
    expect(pods.filter((pod) => existsSync(pod))).toEqual([]);
  });

  it("finds the file of a mounted disk by its name again, which a loop device of the pod's mounts loses", async () => {
    const [image, mountPoint] = [inHome(lab, "disk.ext4"), inHome(lab, "disk")];
    mkdirSync(mountPoint);
    await run(["truncate", "--size=16M", image]);
    await run(["mke2fs", "-q", "-t", "ext4", "-b", "4096", image]);
    await startPod([], [image, mountPoint]);
    await endPod();
    const request = { image, mountPoint, flags: 0, options: "errors=remount-ro", directIo: false };
    expect(await mountAt(mountPoint)).toBeDefined();
    // Attached there already is success, and anything else an error.
    await expect(lab.native.attach(request)).resolves.toMatch(/^\/dev\/loop/);
    await lab.native.detach(mountPoint);
  });

  it("dies with the pod where one tree is not left, which is why every one is", async () => {
    const { pid } = await startPod(trees.slice(0, -1));
    if (trees.length === 1) return;
    await endPod();
    expect(await identify(pid)).toBeUndefined();
  });
});

/** A host in the pod that has started its program. */
async function startPod(
  leave: readonly string[],
  disk: readonly string[] = ["", ""],
): Promise<{ host: ChildProcess; pid: number }> {
  const words = [process.execPath, HOST, lab.nativeProgram, inHome(lab, "pid"), lab.tag];
  const node = String(process.pid);
  const host = spawn("sh", ["-c", ENTER, "pod", ...words, node, ...disk, ...leave], {
    env: { ...process.env, PODS: pods.join(" ") },
    stdio: ["pipe", "pipe", "inherit"],
  });
  const failed = once(host, "exit").then(([code]) =>
    Promise.reject(new Error(`the host ended with ${code}`)),
  );
  failed.catch(() => undefined);
  const [said] = (await Promise.race([once(host.stdout, "data"), failed])) as [Buffer];
  const pid = Number(said.toString());
  started.push(pid);
  return { host, pid };
}

/** Kills what is in the pod's groups, as container runtimes do, and removes them. */
async function endPod(): Promise<void> {
  for (const pod of pods.filter((one) => existsSync(one))) await removed(pod);
}

async function removed(group: string): Promise<void> {
  for (let tries = 0; tries < 200 && existsSync(group); tries += 1) {
    for (const pid of readFileSync(join(group, "cgroup.procs"), "utf8").split("\n").filter(Boolean)) {
      try {
        process.kill(Number(pid), "SIGKILL");
      } catch {
        // It has ended meanwhile.
      }
    }
    try {
      rmdirSync(group);
    } catch {
      await sleep(10);
    }
  }
}

function makeGroup(group: string): void {
  mkdirSync(group);
  if (existsSync(join(group, "cgroup.controllers"))) return;
  for (const name of readdirSync(group).filter((one) => /^cpuset\.(cpus|mems)$/.test(one)))
    writeFileSync(join(group, name), readFileSync(join(group, "..", name)));
}
