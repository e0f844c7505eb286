/**
 * Virtual machines of the QEMU driver, emulated or under KVM as the host has it, with a small agent in them: cold boot against
 * restore from a template, the pause of a live fork by changed memory, memory of clones against machines booted one by one.
 */
import { readFile } from "node:fs/promises";
import { availableParallelism } from "node:os";
import { silentLog } from "@cloche/base";
import { defaults } from "@cloche/protocol";
import type { MachineFiles, RunningMachine } from "../packages/host/src/drivers/driver.ts";
import { shapeOf } from "../packages/host/src/drivers/qemu/shape.ts";
import { bootedFrom } from "../packages/host/src/drivers/qemu/templates.ts";
import { readVmRecord } from "../packages/host/src/drivers/qemu/vm-record.ts";
import { Vm } from "../packages/host/src/drivers/qemu/vm.ts";
import { call, hooksOf, type Lab, openLab, runIn } from "../tests/host/qemu-lab.ts";
import type { Cell } from "./runner.ts";

const RESOURCES = { cpus: 1, memoryMb: 512, diskMb: 1_024 };
const BOOT_TIMEOUT_MS = 900_000;
const MIB = 1024 * 1024;
const CLONES = [1, 5, 20] as const;
const BOOTED = 5;
const WRITTEN_MB = [0, 5, 10, 50, 100] as const;
/** The promise is for a guest that has changed so much since its template. */
const PROMISED_MB = 20;

export interface QemuBench {
  readonly lab: Lab;
  readonly how: "emulated" | "KVM";
  close(): Promise<void>;
}

export async function openQemuBench(): Promise<QemuBench> {
  const lab = await openLab("bench");
  const driver = lab.driver({ makeReadyFor: RESOURCES });
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
      await firstCommand(await driver.create(files, RESOURCES));
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
    targets: [{ arm: "restored from the template", against: "booted cold", atMost: 0.1, from: "issue 5" }],
  };
}

/** How long the source of a live fork stands still, by how much memory it has changed since its template. */
export async function forkPauseCell(
  { lab, how }: QemuBench,
  samples: number,
): Promise<{ cell: Cell; close(): Promise<void> }> {
  const driver = lab.driver();
  const used: MachineFiles[] = [];
  const arms = [];
  let taken = 0;
  for (const megabytes of WRITTEN_MB) {
    const files = await lab.files(`sbx-pause-${megabytes}`);
    used.push(files);
    const machine = await driver.create(files, RESOURCES);
    if (megabytes > 0) await call(machine, "/ballast", String(megabytes));
    const changedMb = Math.round((await changedBytes(files)) / MIB);
    const run = async (): Promise<number> => {
      taken += 1;
      const into = { dir: await lab.directory(`pause-${taken}`) };
      const { pauseMs } = await driver.snapshot(files, into, { stop: false }, hooksOf(machine));
      await lab.removeDirectory(`pause-${taken}`);
      return pauseMs;
    };
    arms.push({ name: `${changedMb} MB changed`, changedMb, run });
  }
  const promised = arms.filter(({ changedMb }) => changedMb <= PROMISED_MB).at(-1);
  // A name that does not depend on what the guest's kernel happened to write: SPECIFICATION.md has it.
  if (promised) promised.name = `at most ${PROMISED_MB} MB changed`;
  const cell: Cell = {
    name: `pause of a live fork's source (${how}, 512 MiB)`,
    samples,
    warmups: 1,
    arms: [...arms, { name: "50 ms", run: async () => 50 }],
    targets: promised ? [{ arm: promised.name, against: "50 ms", atMost: 1, from: "issue 5" }] : [],
  };
  const close = async (): Promise<void> => {
    for (const files of used) await driver.destroy(files);
  };
  return { cell, close };
}

/** Memory that machines really use together; its figures are MiB, not milliseconds. */
export async function memoryCell({ lab, how }: QemuBench): Promise<{ cell: Cell; close(): Promise<void> }> {
  const driver = lab.driver();
  const clones: MachineFiles[] = [];
  const usedMiB = new Map<string, number>();
  for (const count of CLONES) {
    while (clones.length < count) {
      const files = await lab.files(`sbx-clone-${clones.length}`);
      clones.push(files);
      await runIn(await driver.create(files, RESOURCES), "true");
    }
    usedMiB.set(`${count} clones`, await proportionalMiB(clones));
  }
  for (const files of clones) await driver.destroy(files);
  const booted: Vm[] = [];
  const close = async (): Promise<void> => {
    for (const vm of booted.splice(0)) await vm.remove();
  };
  try {
    while (booted.length < BOOTED)
      booted.push(await bootCold(lab, await lab.files(`sbx-booted-${booted.length}`)));
    usedMiB.set(`${BOOTED} booted cold`, await proportionalMiB(booted.map(({ files }) => files)));
  } finally {
    await close();
  }
  const arms = [...usedMiB].map(([name, mebibytes]) => ({ name, run: async () => mebibytes }));
  const targets = [{ arm: "5 clones", against: `${BOOTED} booted cold`, atMost: 0.5, from: "issue 5" }];
  return {
    cell: {
      name: `memory of virtual machines, MiB of PSS (${how}, 512 MiB)`,
      samples: 1,
      warmups: 0,
      arms,
      targets,
    },
    close,
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
    bootTimeoutMs: BOOT_TIMEOUT_MS,
    restoreTimeoutMs: BOOT_TIMEOUT_MS,
  };
  const shape = shapeOf(RESOURCES, availableParallelism());
  return Vm.start(environment, files, {
    shape,
    cpus: RESOURCES.cpus,
    bootedFrom: bootedFrom(lab.platform),
    bootConfig: { port: defaults.agentPort, diskPath: "/mnt/disk" },
  });
}

async function pidOf(files: MachineFiles): Promise<number> {
  const pid = (await readVmRecord(files.dir))?.process?.pid;
  if (pid === undefined) throw new Error(`machine ${files.id} does not run`);
  return pid;
}

/** Private pages of the mapping of the guest's memory. */
async function changedBytes(files: MachineFiles): Promise<number> {
  const text = await readFile(`/proc/${await pidOf(files)}/smaps`, "utf8");
  const mapping = text.split(/^(?=[0-9a-f]+-[0-9a-f]+ )/m).find((one) => one.includes("/vm/base-memory"));
  return Number(/^Anonymous:\s+(\d+) kB$/m.exec(mapping ?? "")?.[1] ?? 0) * 1_024;
}

async function proportionalMiB(all: readonly MachineFiles[]): Promise<number> {
  let kibibytes = 0;
  for (const files of all) {
    const text = await readFile(`/proc/${await pidOf(files)}/smaps_rollup`, "utf8");
    kibibytes += Number(/^Pss:\s+(\d+) kB$/m.exec(text)?.[1] ?? 0);
  }
  return kibibytes / 1_024;
}
