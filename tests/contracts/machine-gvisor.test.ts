import { randomBytes } from "node:crypto";
import { existsSync } from "node:fs";
import { mkdir, readFile, readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { silentLog } from "@cloche/base";
import { defaults, newSandboxId } from "@cloche/protocol";
import { cloneDisk } from "../../packages/host/src/disk/disk.ts";
import type { ReadyHooks } from "../../packages/host/src/drivers/driver.ts";
import { setUpHost } from "../../packages/host/src/setup.ts";
import { childGroups } from "../../packages/host/src/drivers/cgroup.ts";
import { GvisorDriver } from "../../packages/host/src/drivers/gvisor/driver.ts";
import { obtainKeeper } from "../../packages/artifacts/src/programs/programs.ts";
import { closePool } from "../../packages/host/src/pool/pool.ts";
import { instanceTag } from "../../packages/host/src/sys/instance.ts";
import { listInstanceInventory } from "../fixtures/instance-inventory.ts";
import { agentBuild } from "../../packages/app/src/agent-build.ts";
import { LabNetwork } from "../fixtures/lab-network.ts";
import { type DriverLab, machineContract } from "./machine.ts";

async function openLab(ready: number): Promise<DriverLab> {
  const home = `/var/tmp/cloche-driver-${process.pid}-${ready}`;
  const cache = process.env["CLOCHE_CACHE"] ?? "/var/lib/cloche/cache";
  const progress = (): void => undefined;
  const { pool, native, runsc, agentRoot, templates } = await setUpHost({
    home,
    cache,
    runsc: "",
    poolGb: 8,
    agent: agentBuild,
    progress,
  });
  const keeper = await obtainKeeper(cache, progress);
  const tag = instanceTag(home);
  const runDir = `/run/cloche-${tag}`;
  const network = new LabNetwork(tag);
  const standIn = await readFile(join(import.meta.dirname, "../fixtures/stand-in-agent.cjs"), "utf8");
  const dir = join(pool.dir, "lab");
  await mkdir(dir, { recursive: true });
  const settled: (() => Promise<void>)[] = [];
  // The stand-in needs nothing of this: it listens, and holds no file of the disk.
  const standInHooks: ReadyHooks = {
    key: "stand-in",
    disk: async (image) => cloneDisk(native, await templates.ofSize(defaults.diskMb), image),
    prepare: async () => undefined,
    assign: async (_agent, secret) => ({
      sandboxId: newSandboxId(randomBytes),
      name: "nobody",
      secret,
      assignment: "",
    }),
    offer: () => undefined,
    flush: async () => undefined,
    detachDisk: async () => undefined,
  };
  return {
    native,
    dir,
    baseImage: await templates.ofSize(1_024),
    ...(ready > 0 && { ready: standInHooks }),
    settled: async () => {
      for (const wait of settled) await wait();
    },
    openDriver: async () => {
      const driver = new GvisorDriver({
        tag,
        runDir: join(runDir, "gvisor"),
        runsc: runsc.path,
        runscVersion: runsc.version,
        keeper,
        native,
        agentRoot: { dir: agentRoot.dir, argv: ["/bin/node", "-e", standIn], env: [...agentRoot.env] },
        network,
        poolDir: pool.dir,
        hangsDir: join(home, "hangs"),
        ready,
        readyMost: ready,
        log: silentLog,
        randomBytes,
      });
      settled.push(() => driver.settled());
      return driver;
    },
    leftovers: async () => {
      const { mounts, loopDevices, namespaces } = await listInstanceInventory(home, tag);
      const processes: string[] = [];
      for (const pid of await readdir("/proc")) {
        const command = await readFile(`/proc/${pid}/cmdline`, "utf8").catch(() => "");
        if (/^[0-9]+$/.test(pid) && command.includes(runDir)) processes.push(command.replaceAll("\0", " "));
      }
      const cgroups = await childGroups(`/cloche-${tag}`);
      const directories = existsSync(join(runDir, "gvisor")) ? [runDir] : [];
      const ownMounts = mounts.filter((path) => path !== pool.dir);
      const ownLoops = loopDevices.filter((path) => !path.endsWith("/pool.xfs"));
      const slots = [...network.leased].map((slot) => `slot ${slot}`);
      return [...ownMounts, ...ownLoops, ...namespaces, ...processes, ...cgroups, ...directories, ...slots];
    },
    close: async () => {
      await native.close();
      await closePool(home);
      await rm(home, { recursive: true, force: true });
      await rm(runDir, { recursive: true, force: true });
    },
  };
}

machineContract("gVisor", () => openLab(0));
machineContract("gVisor with machines kept ready", () => openLab(1));
