/**
 * One virtual machine: its QEMU process, its directory, its connection to QEMU, its cgroup and network slot.
 * Owns <dir>/vm/ (QEMU sees it as /vm and may create nothing in it), <dir>/vm.json and the cgroup of its id.
 *
 *   start ──▶ running ◀──resume── paused            end: by `remove` (expected), or by itself (`ended` tells why)
 *               │  └──pause────────▲
 *               ▼
 *             ended ──remove──▶ nothing left but the disk image
 *
 * Called by the driver and by templates.ts, which serialise the calls of one machine. The process, the directory and the record
 * survive the service; `Vm.adopt` finds them again.
 */
import { rm, stat } from "node:fs/promises";
import { join } from "node:path";
import { CleanupStack } from "@cloche/base";
import { ClocheError, type Egress } from "@cloche/protocol";
import { Cgroup } from "../cgroup.ts";
import { endedForDisk } from "../disk-watch.ts";
import { ImageMismatchError, type MachineFiles } from "../driver.ts";
import type { NetworkLease } from "../network-slots.ts";
import { isAlive } from "../process-identity.ts";
import { agentAnswers, untilAgentAnswers } from "../../agent-calls/agent-answer.ts";
import {
  consoleBytes,
  diskFileNode,
  diskNode,
  diskOf,
  guestDiskDevice,
  vmFiles,
  vmNodes,
  type VmShape,
} from "./command-line.ts";
import type { VmEnvironment } from "./environment.ts";
import { launchQemu } from "./launch.ts";
import { consoleReadBytes, QmpClient } from "./qmp.ts";
import { type SnapshotManifest, snapshotPaths } from "./snapshot-files.ts";
import { prepareTap } from "./tap.ts";
import { QemuLog } from "./qemu-log.ts";
import { fillVmDirectory, giveDisk } from "./vm-directory.ts";
import { makeVmCgroup, vmCgroupPath, vmLimits } from "./vm-cgroup.ts";
import {
  hostBootId,
  readVmRecord,
  recordedProcessLives,
  removeVmFiles,
  saveVmRecord,
  vmDirectory,
  type VmRecord,
  vmUid,
} from "./vm-record.ts";

const endTries = 500;
const endPauseMs = 10;
/** Bytes of the console in a log line; QEMU keeps `consoleBytes`. */
const consoleTailBytes = 4_096;
const reasonMax = 200;
const saveTimeoutMs = 60_000;
/** QEMU's messages for device state that it cannot load. */
const loadFailed = /error while loading state|load of migration failed/;

export interface VmStart {
  readonly shape: VmShape;
  readonly cpus: number;
  /** In force before the machine starts. Absent: open. */
  readonly egress?: Egress;
  readonly teamId?: string;
  /** A snapshot or template to start from; absent: a cold boot with the platform's kernel. */
  readonly snapshotDir?: string;
  /** Boot config of the agent; read only at a cold boot. */
  readonly bootConfig?: object;
  readonly bootstrapSecret?: string;
  /** Port of the agent; default: the environment's. */
  readonly agentPort?: number;
  /** The snapshot's, or at a cold boot the keys of the platform's parts. */
  readonly bootedFrom: SnapshotManifest["bootedFrom"];
}

/** `qdev`: QEMU's path of a device. */
const isGuestDisk = (qdev: string | undefined): boolean =>
  qdev?.split("/").includes(guestDiskDevice) ?? false;

export class Vm {
  readonly #environment: VmEnvironment;
  readonly files: MachineFiles;
  readonly record: VmRecord;
  readonly #lease: NetworkLease;
  readonly #qmp: QmpClient;
  readonly #ended = Promise.withResolvers<string>();
  #endExpected = false;
  #lastEvent: "panic" | "shutdown" | "hung" | "disk" | undefined;
  /** QEMU could not write to the user's disk: the machine's kernel got an error. */
  diskFailed = false;
  /** Paused by us, so it does not count as hanging. */
  pausedByUs = false;

  private constructor(
    environment: VmEnvironment,
    files: MachineFiles,
    record: VmRecord,
    lease: NetworkLease,
    qmp: QmpClient,
  ) {
    this.#environment = environment;
    this.files = files;
    this.record = record;
    this.#lease = lease;
    this.#qmp = qmp;
    qmp.onEvent(({ event, data }) => {
      if (event === "BLOCK_IO_ERROR" && data["operation"] === "write") this.#writeFailed(data);
      if (event === "SHUTDOWN") this.#lastEvent ??= "shutdown";
      if (event === "GUEST_PANICKED") void this.panicked();
    });
    void qmp.closed.then(() => this.#disconnected());
  }

  get id(): string {
    return this.files.id;
  }
  get standsStill(): boolean {
    return this.pausedByUs || (this.#environment.standstill?.isOn() ?? false);
  }
  get agentHost(): string {
    return this.#lease.agentHost;
  }
  get agentPort(): number {
    return this.record.agentPort;
  }
  get directory(): string {
    return vmDirectory(this.files.dir);
  }
  get pid(): number {
    const { process } = this.record;
    if (!process) throw new Error(`machine ${this.record.id} has no process`);
    return process.pid;
  }
  /** The disk as its QEMU has it open. */
  get diskPath(): string {
    return join(this.directory, diskOf(this.record.disks).file);
  }
  get cgroup(): Cgroup {
    return new Cgroup(vmCgroupPath(this.#environment.tag, this.record.id));
  }
  /** Resolves with a public reason when the machine ends by itself; never after `remove`. */
  get ended(): Promise<string> {
    return this.#ended.promise;
  }

  /** Starts QEMU and waits until the agent answers. Leaves nothing behind when it throws. */
  static start(environment: VmEnvironment, files: MachineFiles, start: VmStart): Promise<Vm> {
    return CleanupStack.guard(async (stack) => {
      const record: VmRecord = {
        id: files.id,
        shape: start.shape,
        cpus: start.cpus,
        uid: vmUid(files.id),
        bootedFrom: start.bootedFrom,
        ...(start.bootstrapSecret !== undefined && { bootstrapSecret: start.bootstrapSecret }),
        agentPort: start.agentPort ?? environment.agentPort,
        disks: 1,
      };
      stack.push("directory of the machine", () => removeVmFiles(files.dir));
      await fillVmDirectory(environment.platform, files, record, start);
      const lease = await environment.network.lease();
      stack.push("network slot", () => environment.network.release(lease.slot));
      record.slot = lease.slot;
      if (start.teamId) await environment.network.setTeamOf(lease.agentHost, start.teamId);
      if (start.egress) await environment.network.setEgressOf(lease.agentHost, start.egress);
      await saveVmRecord(files.dir, record);
      stack.push("cgroup", () => new Cgroup(vmCgroupPath(environment.tag, files.id)).destroy());
      const [cgroupFiles] = await Promise.all([
        makeVmCgroup(environment.tag, files.id, vmLimits(start.shape, start.cpus)),
        lease.prepare().then(() => prepareTap(environment, lease, files.dir, record)),
      ]);
      record.process = await launchQemu(environment, {
        id: files.id,
        vmDir: vmDirectory(files.dir),
        uid: record.uid,
        namespacePath: lease.namespacePath,
        cgroupFiles,
        shape: start.shape,
        ...(start.snapshotDir !== undefined && { devices: snapshotPaths(start.snapshotDir).devices }),
      });
      record.bootId = await hostBootId();
      await saveVmRecord(files.dir, record);
      const qmp = await connectQmp(environment, files, vmDirectory(files.dir), start);
      const vm = new Vm(environment, files, record, lease, qmp);
      stack.push("QEMU", () => vm.#expectEnd());
      await vm.#untilAnswers(start);
      if (start.snapshotDir !== undefined) await vm.#announceDiskSize();
      return vm;
    });
  }

  /** Finds a running machine after a restart of the service. Undefined if its process is gone or unusable. */
  static async adopt(environment: VmEnvironment, files: MachineFiles): Promise<Vm | undefined> {
    const record = await readVmRecord(files.dir);
    if (!record || record.slot === undefined || !(await recordedProcessLives(record))) return undefined;
    const lease = await environment.network.adopt(record.slot);
    if (!lease) return undefined;
    let qmp: QmpClient | undefined;
    try {
      qmp = await QmpClient.connect(vmDirectory(files.dir), vmFiles.socket);
      const { status } = await qmp.execute("query-status");
      if (status !== "running" && status !== "paused") throw new Error(`QEMU says ${status}`);
      const vm = new Vm(environment, files, record, lease, qmp);
      // Paused: the service ended during a snapshot; `unblock` resumes it.
      vm.pausedByUs = status === "paused";
      await vm.#settleSwap();
      await vm.#countFailedWrites();
      return vm;
    } catch (err) {
      environment.log.warn({ err, sandbox_id: files.id }, "a machine's process runs but cannot be adopted");
      qmp?.close();
      return undefined;
    }
  }

  async pause(): Promise<void> {
    this.pausedByUs = true;
    await this.#qmp.execute("stop", saveTimeoutMs);
  }

  /** Harmless if the machine runs. A machine that cannot be resumed counts as hanging from here on. */
  async resume(): Promise<void> {
    await this.#qmp.execute("cont").finally(() => {
      this.pausedByUs = false;
    });
  }

  /** Call while paused. Writes the state of all devices to <directory>/devices. */
  async saveDevices(): Promise<void> {
    await this.#qmp.execute(
      "xen-save-devices-state",
      { filename: `/vm/${vmFiles.devices}`, live: false },
      saveTimeoutMs,
    );
  }

  /**
   * Swaps the disk. The guest must have detached it. When it throws, the old disk is still attached. Does nothing if `toImage` is
   * already attached, so that a swap can be repeated.
   */
  async swapDisk(toImage: string): Promise<void> {
    if ((await stat(toImage)).ino === (await stat(this.diskPath)).ino) return;
    const number = this.record.disks + 1;
    const next = diskOf(number);
    const old = diskOf(this.record.disks);
    await CleanupStack.guard(async (stack) => {
      stack.push("name of the new disk", () => rm(join(this.directory, next.file), { force: true }));
      await giveDisk(toImage, join(this.directory, next.file), this.record.uid);
      await this.#qmp.execute("blockdev-add", diskFileNode(next.file, next.node));
      stack.push("new disk", () =>
        this.#qmp.execute("blockdev-del", { "node-name": next.node }).then(() => {}),
      );
      await this.#qmp.execute("blockdev-reopen", { options: [diskNode(next.node)] });
    });
    this.record.disks = number;
    await saveVmRecord(this.files.dir, this.record);
    await this.#qmp.execute("blockdev-del", { "node-name": old.node });
    await rm(join(this.directory, old.file), { force: true });
    await this.#announceDiskSize();
  }

  /** Completes a swap that a crash of the service cut off: the record may name the old disk, and QEMU may hold both. */
  async #settleSwap(): Promise<void> {
    const blocks = await this.#qmp.execute("query-block");
    const attached = blocks.find(({ qdev }) => isGuestDisk(qdev))?.inserted?.file;
    const { disks } = this.record;
    const number = [disks, disks + 1].find((one) => attached === `/vm/${diskOf(one).file}`);
    if (number === undefined) throw new Error("QEMU has a disk attached that it was not given");
    this.record.disks = number;
    await saveVmRecord(this.files.dir, this.record);
    const nodes = await this.#qmp.execute("query-named-block-nodes", { flat: true });
    for (const other of [number - 1, number + 1].map(diskOf))
      if (nodes.some((node) => node["node-name"] === other.node))
        await this.#qmp.execute("blockdev-del", { "node-name": other.node });
  }

  /** Writes that failed before this service listened: the last one ended while the host was full, or ran on without it. */
  async #countFailedWrites(): Promise<void> {
    const stats = await this.#qmp.execute("query-blockstats");
    const failed = stats.find(({ qdev }) => isGuestDisk(qdev))?.stats?.failed_wr_operations ?? 0;
    if (failed > 0) this.#writeFailed({ reason: "before the service started" });
  }

  /** Whether QEMU and the agent both answer. */
  async healthy(timeoutMs: number): Promise<boolean> {
    await new QemuLog(this.directory).shorten();
    try {
      await this.#qmp.execute("query-status", timeoutMs);
    } catch {
      return false;
    }
    return agentAnswers(this.agentHost, this.agentPort, timeoutMs);
  }

  /** Kills a machine that stopped answering. `ended` reports that, even if the process does not die. */
  async endAsHung(): Promise<void> {
    await this.#endBecause("hung");
  }

  async #endBecause(event: "hung" | "disk"): Promise<void> {
    this.#lastEvent = event;
    await this.#killProcess().finally(() => this.#qmp.close());
  }

  #writeFailed({ reason }: Readonly<Record<string, unknown>>): void {
    if (this.diskFailed) return;
    this.diskFailed = true;
    const fields = { sandbox_id: this.record.id, reason: String(reason).slice(0, reasonMax) };
    this.#environment.log.error(fields, "a write to a machine's disk failed");
  }

  /** Kills a machine whose disk failed. */
  async endForDisk(): Promise<void> {
    await this.#endBecause("disk");
  }

  async #untilAnswers(start: VmStart): Promise<void> {
    const { bootTimeoutMs, restoreTimeoutMs } = this.#environment;
    const timeoutMs = start.snapshotDir === undefined ? bootTimeoutMs : restoreTimeoutMs;
    const gone = this.#qmp.closed.then(() =>
      Promise.reject(new Error("QEMU ended before the agent answered")),
    );
    gone.catch(() => undefined);
    try {
      await untilAgentAnswers(this.agentHost, this.agentPort, timeoutMs, gone);
    } catch (cause) {
      const details = {
        console: await this.#consoleTail(),
        log: await new QemuLog(this.directory).tail(),
        cause,
      };
      this.#environment.log.error({ ...details, sandbox_id: this.record.id }, "a machine did not come up");
      // The machine itself panicked or shut down: a busy host or a kill does not cause that.
      if (this.#lastEvent !== undefined) throwIfFromMemory(start, cause);
      throw new ClocheError("unavailable", "the machine did not come up; try again", { cause });
    }
  }

  /** Tells QEMU the disk's size, which it then tells the guest. It does not notice a change by itself. */
  async #announceDiskSize(): Promise<void> {
    const { size } = await stat(this.diskPath);
    await this.#qmp.execute("block_resize", { "node-name": vmNodes.disk, size });
  }

  /** Call after a panic of the guest's kernel: logs its last output, then kills the machine. */
  async panicked(): Promise<void> {
    if (this.#lastEvent === "panic") return;
    this.#lastEvent = "panic";
    const console = await this.#consoleTail();
    this.#environment.log.warn({ sandbox_id: this.record.id, console }, "the kernel of a machine panicked");
    await this.#killOrReport();
  }

  /** The end of the console's ring, which is read from its beginning. */
  async #consoleTail(): Promise<string> {
    let tail = "";
    for (let read = 0; read < consoleBytes; read += consoleReadBytes) {
      const piece = { device: vmNodes.console, size: consoleReadBytes };
      const text = await this.#qmp.execute("ringbuf-read", piece, 2_000).catch(() => "");
      tail = (tail + String(text)).slice(-consoleTailBytes);
      if (text === "") break;
    }
    return tail;
  }

  async #disconnected(): Promise<void> {
    if (this.#endExpected) return;
    // The connection closes a moment before the process ends. A QEMU without its connection is unusable anyway.
    await this.#killOrReport();
    if (!this.#endExpected) this.#ended.resolve(await this.#endReason());
  }

  async #endReason(): Promise<string> {
    if (this.#lastEvent === "panic") return "the kernel of the machine panicked";
    if (this.#lastEvent === "disk") return endedForDisk;
    if (this.#lastEvent === "hung") return "the machine stopped answering";
    if (this.#lastEvent === "shutdown")
      return "the machine's process ended: it shut itself down, or its agent ended";
    if (await this.cgroup.outOfMemory().catch(() => false))
      return "the machine ran out of memory; create it with more memory_mb";
    return "the machine's process was killed";
  }

  #expectEnd(): void {
    this.#endExpected = true;
    this.#qmp.close();
  }

  /** For an end that nobody waits for. */
  async #killOrReport(): Promise<void> {
    await this.#killProcess().catch((err: unknown) =>
      this.#environment.log.error({ err, sandbox_id: this.record.id }, "cannot end a machine's process"),
    );
  }

  async #killProcess(): Promise<void> {
    await killRecorded(this.record, this.cgroup);
  }

  /** Disconnects. The machine keeps running; the next service, or the next call, adopts it. */
  letGo(): void {
    this.#expectEnd();
  }

  /** Kills the machine and frees everything except the disk image. */
  async remove(): Promise<void> {
    this.#expectEnd();
    await removeMachine(this.#environment, this.files);
  }
}

/** Removes everything of a machine, running or half-made, except its disk image. Repeatable; needs no Vm. */
export async function removeMachine(environment: VmEnvironment, files: MachineFiles): Promise<void> {
  const record = await readVmRecord(files.dir);
  const cgroup = new Cgroup(vmCgroupPath(environment.tag, files.id));
  if (record) await killRecorded(record, cgroup);
  // Also kills a QEMU that was started but is not yet in the record.
  await cgroup.destroy();
  if (record?.slot !== undefined) await environment.network.release(record.slot);
  await removeVmFiles(files.dir);
}

async function killRecorded(record: VmRecord, cgroup: Cgroup): Promise<void> {
  const { process: identity } = record;
  if (!identity || !(await recordedProcessLives(record))) return;
  try {
    process.kill(identity.pid, "SIGKILL");
  } catch {
    return; // Gone by itself.
  }
  for (let i = 0; i < endTries; i += 1) {
    if (!(await isAlive(identity))) return;
    // A process frozen by the guard of the lease does not die by a signal alone.
    await cgroup.kill();
    await new Promise((resolve) => setTimeout(resolve, endPauseMs));
  }
  throw new Error(`process ${identity.pid} of machine ${record.id} does not end`);
}

function throwIfFromMemory(start: VmStart, cause: unknown): void {
  if (start.snapshotDir === undefined) return;
  throw new ImageMismatchError("the memory snapshot is damaged (the machine ended as it woke)", cause);
}

async function connectQmp(
  environment: VmEnvironment,
  files: MachineFiles,
  directory: string,
  start: VmStart,
): Promise<QmpClient> {
  try {
    return await QmpClient.connect(directory, vmFiles.socket);
  } catch (cause) {
    const log = await new QemuLog(directory).tail();
    environment.log.error({ log, err: cause, sandbox_id: files.id }, "QEMU did not start");
    if (loadFailed.test(log)) throwIfFromMemory(start, cause);
    throw new ClocheError("unavailable", "the machine could not be started; try again", { cause });
  }
}
