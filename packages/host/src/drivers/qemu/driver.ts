/**
 * Machines as QEMU virtual machines, under KVM or emulated.
 * Owns the Vm objects of this process, the templates on the pool and the health watch. vm.ts is one machine and its states.
 * The host service serialises the calls of one machine.
 * Everything except this object survives a crash of the service; `adopt` and `sweep` find it again.
 */
import { readdir, readFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { type Clock, type Log, systemClock } from "@cloche/base";
import { ClocheError, defaults } from "@cloche/protocol";
import { Cgroup, childGroups } from "../cgroup.ts";
import {
  type SnapshotHooks,
  ImageMismatchError,
  type MachineDriver,
  type MachineFiles,
  type MachineResources,
  type MachineStats,
  type RunningMachine,
  type SnapshotFiles,
  type Standstill,
} from "../driver.ts";
import { DiskWatch, hasRoom } from "../disk-watch.ts";
import { HealthWatch } from "../health-watch.ts";
import type { Native } from "../../sys/native.ts";
import type { NetworkSlots } from "../network-slots.ts";
import { guestBlockDevice, type VmShape } from "./command-line.ts";
import type { VmEnvironment } from "./environment.ts";
import { processMark } from "./launch.ts";
import type { VmPlatform } from "./platform.ts";
import { shapeOf } from "./shape.ts";
import { fittingManifest, openSnapshot, type SnapshotManifest } from "./snapshot-files.ts";
import { takeDiskCheckpoint, takeSnapshot } from "./take-snapshot.ts";
import { type VmTemplate, VmTemplates } from "./templates.ts";
import { removeVmCgroupRoot, vmCgroupPath, vmCgroupRoot } from "./vm-cgroup.ts";
import { checkDiskImage } from "./vm-directory.ts";
import { removeMachine, Vm } from "./vm.ts";

const kib = 1024;

export interface QemuDriverOptions {
  readonly tag: string;
  readonly platform: VmPlatform;
  readonly network: NetworkSlots;
  /** Directory on the pool, used only by this driver. */
  readonly templatesDir: string;
  readonly native: Native;
  readonly log: Log;
  readonly clock?: Clock;
  readonly agentPort?: number;
  /** The size for which `start` makes a template; others are made at the first request. */
  readonly makeReadyFor?: Pick<MachineResources, "cpus" | "memoryMb">;
  readonly health?: { readonly intervalMs: number; readonly hungAfterMs: number };
}

export class QemuDriver implements MachineDriver {
  readonly runtime = "qemu";
  readonly #environment: VmEnvironment;
  readonly #standstill: Standstill = { isOn: () => false };
  readonly #templates: VmTemplates;
  readonly #health: HealthWatch;
  readonly #disks: DiskWatch;
  readonly #firstShape: VmShape | undefined;
  readonly #machines = new Map<string, Vm>();
  readonly #exitListeners: ((id: string, reason: string) => void)[] = [];

  constructor(options: QemuDriverOptions) {
    const { platform, tag, network, native, log } = options;
    const emulated = platform.accelerator === "tcg";
    this.#environment = {
      tag,
      platform,
      network,
      native,
      log,
      standstill: this.#standstill,
      agentPort: options.agentPort ?? defaults.agentPort,
      // An emulated boot takes ten seconds of CPU time, and much longer on a busy host.
      bootTimeoutMs: emulated ? 200_000 : 60_000,
      restoreTimeoutMs: emulated ? 180_000 : 20_000,
    };
    this.#templates = new VmTemplates(this.#environment, options.templatesDir);
    const health = options.health ?? { intervalMs: 10_000, hungAfterMs: emulated ? 300_000 : 60_000 };
    this.#health = new HealthWatch(health, options.clock ?? systemClock, log);
    this.#disks = new DiskWatch(log, () => hasRoom(dirname(options.templatesDir)));
    this.#firstShape = options.makeReadyFor && shapeOf(options.makeReadyFor);
  }

  standStillWhile(isStill: () => boolean): void {
    this.#standstill.isOn = isStill;
  }

  /** Checks the conditions only; `start` boots and saves a template, which proves the rest. */
  async probe(): Promise<void> {
    const { platform, log } = this.#environment;
    if (process.getuid?.() !== 0)
      throw new ClocheError("failed_precondition", "virtual machines need the service to run as root");
    if (platform.accelerator === "tcg")
      log.warn(
        { why: platform.emulatedBecause },
        "virtual machines are EMULATED on this host (no working KVM): they work, many times slower; gvisor is faster here",
      );
  }

  /** Makes the first template, which also proves that boot and save work on this host. */
  async start(): Promise<void> {
    await this.#templates.clean();
    if (this.#firstShape) await this.#templates.obtain(this.#firstShape);
    this.#health.start(() => this.#machines.values());
    this.#disks.start(() => this.#machines.values());
  }

  async stop(): Promise<void> {
    this.#health.stop();
    this.#disks.stop();
    // QEMU takes one connection at a time, which the next service needs.
    for (const vm of this.#machines.values()) vm.letGo();
    this.#machines.clear();
    await removeVmCgroupRoot(this.#environment.tag);
  }

  async create(files: MachineFiles, resources: MachineResources): Promise<RunningMachine> {
    const fromTemplate = async (template: VmTemplate): Promise<RunningMachine> => {
      const manifest = await openSnapshot(template.dir, this.#environment.platform);
      return this.#startFrom(files, template.dir, manifest, resources);
    };
    const shape = shapeOf(resources);
    const template = await this.#templates.obtain(shape);
    try {
      return await fromTemplate(template);
    } catch (error) {
      if (!(error instanceof ImageMismatchError)) throw error;
      this.#environment.log.warn({ err: error }, "a template is damaged: it is made anew");
      await this.#templates.discard(template);
      return fromTemplate(await this.#templates.obtain(shape));
    }
  }

  async requireRestorable(from: SnapshotFiles, { descriptionOnly = false } = {}): Promise<void> {
    const check = descriptionOnly ? fittingManifest : openSnapshot;
    await check(from.dir, this.#environment.platform);
  }

  async memoryBase(from: SnapshotFiles): Promise<string | undefined> {
    const { shape } = await fittingManifest(from.dir, this.#environment.platform);
    return this.#templates.known(shape);
  }

  async restore(
    files: MachineFiles,
    from: SnapshotFiles,
    resources: MachineResources,
  ): Promise<RunningMachine> {
    const manifest = await openSnapshot(from.dir, this.#environment.platform);
    return this.#startFrom(files, from.dir, manifest, resources);
  }

  async #startFrom(
    files: MachineFiles,
    snapshotDir: string,
    manifest: SnapshotManifest,
    { cpus, egress, teamId }: MachineResources,
  ): Promise<RunningMachine> {
    const { shape, bootedFrom, bootstrapSecret, agentPort } = manifest;
    const living = await this.#find(files);
    if (living) return this.#running(living);
    await checkDiskImage(files.diskImage);
    await removeMachine(this.#environment, files);
    const secret = bootstrapSecret === undefined ? {} : { bootstrapSecret };
    const policy = { ...(egress && { egress }), ...(teamId !== undefined && { teamId }) };
    const start = { shape, cpus, snapshotDir, bootedFrom, agentPort, ...secret, ...policy };
    const vm = await Vm.start(this.#environment, files, start);
    return this.#running(this.#keep(vm));
  }

  async adopt(files: MachineFiles): Promise<RunningMachine | undefined> {
    const vm = await this.#find(files);
    if (vm) return this.#running(vm);
    // Do not leave an unusable process running.
    await removeMachine(this.#environment, files);
    return undefined;
  }

  async checkpointDisk(
    files: MachineFiles,
    toImage: string,
    hooks: SnapshotHooks,
  ): Promise<{ pauseMs: number }> {
    return takeDiskCheckpoint(await this.#must(files), toImage, hooks);
  }

  async swapDisk(files: MachineFiles, toImage: string, hooks: SnapshotHooks): Promise<void> {
    const vm = await this.#must(files);
    await checkDiskImage(toImage);
    await hooks.detachDisk();
    await vm.swapDisk(toImage);
  }

  async snapshot(
    files: MachineFiles,
    into: SnapshotFiles,
    options: { stop: boolean },
    hooks: SnapshotHooks,
  ): Promise<{ pauseMs: number }> {
    return takeSnapshot(this.#environment, await this.#must(files), into, options, hooks);
  }

  async unblock(files: MachineFiles): Promise<void> {
    const vm = await this.#find(files);
    await vm?.resume();
  }

  async stats(files: MachineFiles): Promise<MachineStats> {
    const vm = await this.#must(files);
    const { cpuMs, processes } = await vm.cgroup.figures();
    return { cpuMs, processes, memoryBytes: await proportionalMemory(vm.pid) };
  }

  onExit(listener: (id: string, reason: string) => void): void {
    this.#exitListeners.push(listener);
  }

  async endNow(files: MachineFiles): Promise<void> {
    await new Cgroup(vmCgroupPath(this.#environment.tag, files.id)).kill();
  }

  async stopMachine(files: MachineFiles): Promise<void> {
    const vm = this.#machines.get(files.id);
    this.#machines.delete(files.id);
    if (vm) await vm.remove();
    else await removeMachine(this.#environment, files);
  }

  /** The same as stopMachine, which removes all our files in `dir`. */
  destroy(files: MachineFiles): Promise<void> {
    return this.stopMachine(files);
  }

  async sweep(keep: ReadonlySet<string>): Promise<string[]> {
    const { tag } = this.#environment;
    const processes = await markedProcesses(tag);
    const found = new Set([...(await childGroups(vmCgroupRoot(tag))), ...processes.map(({ id }) => id)]);
    const unwanted = [...found].filter((id) => !keep.has(id) && !this.#templates.isBuilding(id));
    for (const id of unwanted) {
      const known = this.#machines.get(id);
      if (known) await this.stopMachine(known.files);
      for (const { pid } of processes.filter((one) => one.id === id)) kill(pid);
      await new Cgroup(vmCgroupPath(tag, id)).destroy();
    }
    await removeVmCgroupRoot(tag);
    return unwanted;
  }

  #keep(vm: Vm): Vm {
    const { id } = vm.files;
    this.#machines.set(id, vm);
    void vm.ended.then((reason) => {
      if (this.#machines.get(id) === vm) this.#machines.delete(id);
      for (const listener of this.#exitListeners) listener(id, reason);
    });
    return vm;
  }

  async #find(files: MachineFiles): Promise<Vm | undefined> {
    const known = this.#machines.get(files.id);
    if (known) return known;
    const adopted = await Vm.adopt(this.#environment, files);
    return adopted && this.#keep(adopted);
  }

  async #must(files: MachineFiles): Promise<Vm> {
    const vm = await this.#find(files);
    if (!vm) throw new ClocheError("failed_precondition", "the machine does not run");
    return vm;
  }

  #running(vm: Vm): RunningMachine {
    return {
      id: vm.files.id,
      agentHost: vm.agentHost,
      agentPort: vm.agentPort,
      bootstrapSecret: vm.record.bootstrapSecret,
      blockDevice: guestBlockDevice,
    };
  }
}

/** Proportional set size: pages shared with the template and other clones count in part. */
async function proportionalMemory(pid: number): Promise<number> {
  const text = await readFile(`/proc/${pid}/smaps_rollup`, "utf8");
  return Number(/^Pss:\s+(\d+) kB$/m.exec(text)?.[1] ?? 0) * kib;
}

/** QEMU processes of this instance. */
export async function markedProcesses(tag: string): Promise<{ id: string; pid: number }[]> {
  const prefix = processMark(tag, "");
  const found: { id: string; pid: number }[] = [];
  for (const name of await readdir("/proc")) {
    if (!/^\d+$/.test(name)) continue;
    const commandLine = await readFile(join("/proc", name, "cmdline"), "utf8").catch(() => "");
    const mark = commandLine.split("\0").find((argument) => argument.startsWith(prefix));
    if (mark) found.push({ id: mark.slice(prefix.length), pid: Number(name) });
  }
  return found;
}

function kill(pid: number): void {
  try {
    process.kill(pid, "SIGKILL");
  } catch {
    // Gone by itself.
  }
}
