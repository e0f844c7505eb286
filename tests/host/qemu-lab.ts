// What tests and benchmarks of the QEMU driver run in: a pool and network slots of their own, a platform from the shared
// cache with a stand-in agent, and a driver. `close` takes all of it away and says what was left behind.
import { execFileSync } from "node:child_process";
import { mkdir, readdir, rm } from "node:fs/promises";
import { request } from "node:http";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { createLog } from "@cloche/base";
import { obtainAgentRoot } from "../../packages/artifacts/src/rootfs/agent-root.ts";
import { type BaseImage, obtainBaseImage } from "../../packages/artifacts/src/rootfs/base-image.ts";
import { obtainBaseRootfs } from "../../packages/artifacts/src/rootfs/base-rootfs.ts";
import { obtainBusybox } from "../../packages/artifacts/src/rootfs/busybox.ts";
import type { SnapshotHooks, MachineFiles, RunningMachine } from "../../packages/host/src/drivers/driver.ts";
import type { Accelerator } from "../../packages/host/src/drivers/qemu/command-line.ts";
import {
  markedProcesses,
  QemuDriver,
  type QemuDriverOptions,
} from "../../packages/host/src/drivers/qemu/driver.ts";
import { obtainVmPlatform, type VmPlatform } from "../../packages/host/src/drivers/qemu/platform.ts";
import { obtainNative } from "../../packages/artifacts/src/programs/programs.ts";
import { Native } from "../../packages/host/src/sys/native.ts";
import { LabNetwork } from "../fixtures/lab-network.ts";
import { closePool, openPool, type Pool } from "../../packages/host/src/pool/pool.ts";
import { instanceTag } from "../../packages/host/src/sys/instance.ts";

const SHELL_AGENT = fileURLToPath(new URL("fixtures/shell-agent.cjs", import.meta.url));
export const LAB_RESOURCES = { cpus: 1, memoryMb: 256, diskMb: 1_024 };
const POOL_BYTES = 16 * 1024 ** 3;

export interface Lab {
  readonly home: string;
  readonly tag: string;
  readonly platform: VmPlatform;
  readonly network: LabNetwork;
  readonly native: Native;
  readonly pool: Pool;
  readonly baseImage: BaseImage;
  /** A driver on this lab; several after each other stand for restarts of the service. */
  driver(overrides?: Partial<QemuDriverOptions>): QemuDriver;
  /** A new machine's files with a freshly formatted disk. */
  files(id: string): Promise<MachineFiles>;
  /** A new directory on the pool. */
  directory(name: string): Promise<string>;
  removeDirectory(name: string): Promise<void>;
  close(): Promise<void>;
}

export interface LabOptions {
  readonly accelerator?: Accelerator;
  /** Script of the agent, and additions to its environment. */
  readonly agent?: string;
  readonly agentEnvironment?: readonly string[];
}

export async function openLab(name: string, options: LabOptions = {}): Promise<Lab> {
  const cache = process.env.CLOCHE_CACHE ?? "/var/tmp/cloche-cache";
  const home = `/var/tmp/cloche-qemu-${name}-${process.pid}`;
  const quiet = (): void => undefined;
  const rootfs = await obtainBaseRootfs(
    cache,
    { nodeBinary: process.execPath, nodeVersion: process.version },
    quiet,
  );
  const baseImage = await obtainBaseImage(cache, rootfs, quiet);
  const busybox = await obtainBusybox(cache, quiet);
  const agentRoot = await obtainAgentRoot(
    cache,
    { rootfs, nodeVersion: process.version, busybox, bundle: options.agent ?? SHELL_AGENT, programs: {} },
    quiet,
  );
  // The lab's agent opens its own socket: the program that would open it is not in this root.
  const argv = agentRoot.argv.slice(agentRoot.argv.indexOf("--") + 1);
  const platform = await obtainVmPlatform({
    cache,
    agentRoot: { ...agentRoot, argv, env: [...agentRoot.env, ...(options.agentEnvironment ?? [])] },
    progress: quiet,
    ...(options.accelerator !== undefined && { accelerator: options.accelerator }),
  });
  const pool = await openPool({ home, sizeBytes: POOL_BYTES, progress: quiet });
  const tag = instanceTag(home);
  const native = new Native(await obtainNative(cache, quiet));
  const network = new LabNetwork(tag);
  const drivers: QemuDriver[] = [];
  const ids = new Set<string>();
  const lab: Lab = {
    home,
    tag,
    platform,
    network,
    native,
    pool,
    baseImage,
    driver(overrides = {}) {
      const driver = new QemuDriver({
        tag,
        platform,
        network,
        native,
        templatesDir: join(pool.dir, "vm-templates"),
        log: createLog({ level: "error" }),
        makeReadyFor: LAB_RESOURCES,
        ...overrides,
      });
      drivers.push(driver);
      return driver;
    },
    async files(id) {
      ids.add(id);
      const dir = join(pool.dir, "machines", id);
      await rm(dir, { recursive: true, force: true });
      await mkdir(dir, { recursive: true });
      const diskImage = join(dir, "disk.ext4");
      execFileSync("truncate", ["-s", "1G", diskImage]);
      execFileSync("mke2fs", ["-q", "-t", "ext4", "-E", "lazy_itable_init=1", diskImage]);
      return { id, dir, diskImage };
    },
    async directory(directoryName) {
      const dir = join(pool.dir, directoryName);
      await rm(dir, { recursive: true, force: true });
      await mkdir(dir, { recursive: true });
      return dir;
    },
    async removeDirectory(directoryName) {
      await rm(join(pool.dir, directoryName), { recursive: true, force: true });
    },
    async close() {
      for (const driver of drivers) await driver.stop();
      await lab.driver().sweep(new Set());
      for (const slot of network.leased) await network.release(slot);
      await native.close();
      const groups = await readdir("/sys/fs/cgroup/memory").catch(() => readdir("/sys/fs/cgroup"));
      if (groups.includes(`cloche-${tag}-vm`))
        throw new Error("a cgroup of virtual machines was left behind");
      await closePool(home);
      await rm(home, { recursive: true, force: true });
    },
  };
  return lab;
}

/** Ids of the machines of a lab whose QEMU lives. */
export async function processesOf(tag: string): Promise<string[]> {
  return (await markedProcesses(tag)).map(({ id }) => id).sort();
}

export interface Ran {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

type AgentAddress = Pick<RunningMachine, "agentHost" | "agentPort">;

/** Runs a shell script in the machine. */
export const runIn = (machine: AgentAddress, script: string): Promise<Ran> =>
  call<Ran>(machine, "/run", script);

export function call<T>(machine: AgentAddress, path: string, body = "", timeoutMs = 60_000): Promise<T> {
  return new Promise((resolve, reject) => {
    const { agentHost: host, agentPort: port } = machine;
    const outgoing = request(
      { host, port, path, method: "POST", agent: false, timeout: timeoutMs },
      (response) => {
        let text = "";
        response.on("data", (chunk: Buffer) => {
          text += chunk.toString();
        });
        response.on("end", () => resolve(JSON.parse(text) as T));
      },
    );
    outgoing.on("timeout", () => outgoing.destroy(new Error(`no answer to ${path}`)));
    outgoing.on("error", reject);
    outgoing.end(body);
  });
}

export const MOUNT = "mkdir -p /mnt/disk && mount -t ext4 /dev/vdb /mnt/disk";

/** What the agent does for the driver, by the stand-in. */
export function hooksOf(machine: RunningMachine): SnapshotHooks {
  const must = async (script: string): Promise<void> => {
    const { code, stderr } = await runIn(machine, script);
    if (code !== 0) throw new Error(`${script}: ${stderr}`);
  };
  return { flush: () => must("sync"), detachDisk: () => must("umount /mnt/disk") };
}
