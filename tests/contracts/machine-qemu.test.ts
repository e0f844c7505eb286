// The contract of machines on QEMU, emulated so that it runs on every host. See also tests/host/qemu.test.ts.
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { vi } from "vitest";
import { defaults } from "@cloche/protocol";
import { childGroups } from "../../packages/host/src/drivers/cgroup.ts";
import type { RunningMachine } from "../../packages/host/src/drivers/driver.ts";
import type { QemuDriver } from "../../packages/host/src/drivers/qemu/driver.ts";
import { vmCgroupRoot } from "../../packages/host/src/drivers/qemu/vm-cgroup.ts";
import { openTemplates } from "../../packages/host/src/disk/template.ts";
import { listInstanceInventory } from "../fixtures/instance-inventory.ts";
import { call, openLab as openVmLab, processesOf } from "../host/qemu-lab.ts";
import { type DriverLab, machineContract } from "./machine.ts";

// An emulated boot is ten seconds of computing: minutes on a host that is busy with other things.
vi.setConfig({ testTimeout: 300_000, hookTimeout: 900_000 });

const STAND_IN = join(import.meta.dirname, "../fixtures/stand-in-agent.cjs");

async function openLab(): Promise<DriverLab> {
  const lab = await openVmLab("contract", {
    accelerator: "tcg",
    agent: STAND_IN,
    agentEnvironment: ["BLOCK_DEVICE=/dev/vdb"],
  });
  const { native, pool, tag, home, network } = lab;
  const templates = await openTemplates({
    pool,
    native,
    base: lab.baseImage,
    sizesMb: [1_024],
    progress: () => undefined,
  });
  const dir = join(pool.dir, "lab");
  await mkdir(dir, { recursive: true });
  let current: QemuDriver | undefined;
  return {
    native,
    dir,
    baseImage: await templates.ofSize(1_024),
    openDriver: async () => {
      // The service before has ended: its connections are gone.
      await current?.stop();
      current = lab.driver({ makeReadyFor: defaults });
      return current;
    },
    hooks: (machine: RunningMachine) => ({
      flush: () => call(machine, "/sync"),
      detachDisk: () => call(machine, "/detach"),
    }),
    leftovers: async () => {
      const { mounts, loopDevices, namespaces } = await listInstanceInventory(home, tag);
      return [
        ...mounts.filter((path) => path !== pool.dir),
        ...loopDevices.filter((path) => !path.endsWith("/pool.xfs")),
        ...namespaces,
        ...(await processesOf(tag)),
        ...(await childGroups(vmCgroupRoot(tag))),
        ...[...network.leased].map((slot) => `slot ${slot}`),
      ];
    },
    close: () => lab.close(),
  };
}

machineContract("QEMU, emulated", openLab);
