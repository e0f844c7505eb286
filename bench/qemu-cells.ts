/** A virtual machine of the QEMU driver, emulated or under KVM as the host has it, with a small agent in it: restored from a template against booted cold. */
import { availableParallelism } from "node:os";
import { silentLog } from "@cloche/base";
import { defaults } from "@cloche/protocol";
import type { MachineFiles, RunningMachine } from "../packages/host/src/drivers/driver.ts";
import { shapeOf } from "../packages/host/src/drivers/qemu/shape.ts";
import { bootedFrom } from "../packages/host/src/drivers/qemu/templates.ts";
import { Vm } from "../packages/host/src/drivers/qemu/vm.ts";
import { type Lab, openLab, runIn } from "../tests/host/qemu-lab.ts";
import type { Cell } from "./runner.ts";

const resources = { cpus: 1, memoryMb: 512, diskMb: 1_024 };
const bootTimeoutMs = 900_000;

export interface QemuBench {
  readonly lab: Lab;
  readonly how: "emulated" | "KVM";
  close(): Promise<void>;
}

export async function openQemuBench(): Promise<QemuBench> {
  const lab = await openLab("bench");
  const driver = lab.driver({ makeReadyFor: resources });
  await driver.start();
  await driver.stop();
  return { lab, how: lab.platform.accelerator === "kvm" ? "KVM" : "emulated", close: () => lab.close() };
}

/** From nothing to the answer of a first command. */
export function bootCell({ lab, how }: QemuBench, samples: number): Cell {
  const driver = lab.driver();
  let made = 0;
  const timed = async (start: (files: MachineFiles) => Promise<() => Promise<void>>): Promise<number> => {
    made += 1;
    const files = await lab.files(`sbx-boot-${made}`);
    const beganMs = performance.now();
    const end = await start(files);
    const tookMs = performance.now() - beganMs;
    await end();
    return tookMs;
  };
  const firstCommand = async (machine: Pick<RunningMachine, "agentHost" | "agentPort">): Promise<void> => {
    const { code } = await runIn(machine, "true");
    if (code !== 0) throw new Error(`true ended with ${code}`);
  };
  const restore = () =>
    timed(async (files) => {
      await firstCommand(await driver.create(files, resources));
      return () => driver.destroy(files);
    });
  const boot = () =>
    timed(async (files) => {
      const vm = await bootCold(lab, files);
      await firstCommand({ agentHost: vm.agentHost, agentPort: defaults.agentPort });
      return () => vm.remove();
    });
  return {
    name: `virtual machine to the answer of its first command (${how}, 512 MiB)`,
    samples,
    warmups: 1,
    arms: [
      { name: "restored from the template", run: restore },
      { name: "booted cold", run: boot, samples: Math.min(samples, 3) },
    ],
    targets: [{ arm: "restored from the template", against: "booted cold", atMost: 0.15 }],
  };
}

function bootCold(lab: Lab, files: MachineFiles): Promise<Vm> {
  const environment = {
    tag: lab.tag,
    platform: lab.platform,
    network: lab.network,
    native: lab.native,
    agentPort: defaults.agentPort,
    log: silentLog,
    bootTimeoutMs,
    restoreTimeoutMs: bootTimeoutMs,
  };
  const shape = shapeOf(resources, availableParallelism());
  return Vm.start(environment, files, {
    shape,
    cpus: resources.cpus,
    bootedFrom: bootedFrom(lab.platform),
    bootConfig: { port: defaults.agentPort, diskPath: "/mnt/disk" },
  });
}
