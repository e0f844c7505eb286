import { ClocheError, type Egress } from "@cloche/protocol";

/**
 * What every kind of machine can do. One contract suite (tests/contracts/machine) runs against each driver.
 *
 * A driver makes, snapshots and destroys machines; it knows nothing of teams, tokens or checkpoints in storage. The host
 * service above it owns the record of each machine, serialises the calls of one machine, talks to the agent
 * (Assign, PrepareCheckpoint, …) and keeps the checkpoint catalogue.
 *
 * Survives a crash of the service: everything under `MachineFiles.dir` and the machine's processes, which are no children
 * of ours. `adopt` finds them again. Every call can be repeated; a call that throws leaves what was there before.
 */
export type Runtime = "gvisor" | "qemu";

/** Where a machine's files lie, all on the reflink pool. */
export interface MachineFiles {
  /** Sandbox id. */
  id: string;
  /** The machine's own directory; the driver may make what it likes in it. */
  dir: string;
  /** ext4 image of the user's disk. Made by the host service (a clone of a template or checkpoint) before `create`. */
  diskImage: string;
}

export interface MachineResources {
  cpus: number;
  memoryMb: number;
  diskMb: number;
  /** In force before anything of the user runs. Absent: open. */
  egress?: MachineEgress;
}

/** The revision grows: a policy older than the one in force is ignored. */
export type MachineEgress = Egress & { revision: number };

/** A living machine whose agent listens. */
export interface RunningMachine {
  id: string;
  /** Where host and edge reach the agent. */
  agentHost: string;
  agentPort: number;
  /** The secret that the agent accepts for its next Assign: a bootstrap secret, or the one it had at the snapshot. */
  bootstrapSecret: string | undefined;
  /** VM drivers: the name of the block device that holds the user's disk in the guest, for AttachDisk. */
  blockDevice: string | undefined;
  /** What its agent was told ahead: that of its `ReadyIdentity`. */
  assignment?: string;
}

/** Whose machine one that is made ahead is going to be, should it be asked for under that id. */
export interface ReadyIdentity {
  sandboxId: string;
  name: string;
  /** What the agent accepts from now on. */
  secret: string;
  /** Stands for all that it was told; equal ones: there is nothing new to tell. */
  assignment: string;
}

/** Where an agent of this release is reached. */
export interface AgentAddress {
  agentHost: string;
  agentPort: number;
  channel: 1;
}

/** Memory and disk of a machine at one instant: what suspend keeps and forks start from. */
export interface SnapshotFiles {
  /** An empty directory on the pool, made by the caller, filled by the driver. */
  dir: string;
}

/** The memory can never be restored on this host as it now is (another runtime version or CPU, damage); the disk can be used. */
export class ImageMismatchError extends ClocheError {
  /** `message`: why, in public words that go on "started from its disk, without its memory: ". */
  constructor(message: string, cause?: unknown) {
    super("failed_precondition", message, cause === undefined ? {} : { cause });
  }
}

export interface SnapshotTimes {
  pauseMs: number;
}

/** The disk image of a snapshot, written by the driver beside the memory. */
export const snapshotDisk = (snapshot: SnapshotFiles): string => `${snapshot.dir}/disk.ext4`;

export interface MachineStats {
  cpuMs: number;
  /** Memory charged to the machine, as a user of the host would count it (PSS or cgroup). */
  memoryBytes: number;
  processes: number;
}

/** What a driver asks of the layer above in the middle of an operation. Times out by itself. */
export interface SnapshotHooks {
  /** PrepareCheckpoint of the machine's agent: flush and sync. Before a snapshot PrepareSnapshot too. */
  flush(): Promise<void>;
  /** DetachDisk: the users' processes are gone and the disk is not in use when it returns. */
  detachDisk(): Promise<void>;
}

/** How the layer above makes a machine ready before anybody asks for it; for drivers that keep such machines. */
export interface ReadyHooks {
  /** Names what disks and agents are made by: what was made ahead by another is not used. */
  readonly key: string;
  /** A fresh disk of the default size as a file at `image`. */
  disk(image: string): Promise<void>;
  /** Prepare of the agent there, which knows `secret`. */
  prepare(agent: AgentAddress, secret: string): Promise<void>;
  /** Assign of the prepared agent, as a sandbox of the default shape that nobody has asked for yet. */
  assign(agent: AgentAddress, secret: string): Promise<ReadyIdentity>;
  /** These are all that are kept ready now. */
  offer(identities: ReadyIdentity[]): void;
  /** PrepareSnapshot and PrepareCheckpoint of the agent that was prepared: it can be saved with its disk. */
  flush(agent: AgentAddress, secret: string): Promise<void>;
  /** The agent that was prepared lets go of its disk again. */
  detachDisk(agent: AgentAddress, secret: string): Promise<void>;
}

/** Machines made before anybody asks for them. */
export interface ReadyMachines {
  /**
   * A machine made ahead, its fresh disk included, which becomes `files.diskImage`; undefined where none is kept that fits.
   * Assigned where it was offered under `files.id`, else it is somebody's who never was.
   * `given`: awaited while the machine wakes up, disk in place; it may still turn out not to work.
   */
  claim(
    files: MachineFiles,
    resources: MachineResources,
    given: (machine: RunningMachine) => Promise<void>,
  ): Promise<RunningMachine | undefined>;
  /**
   * Makes `files.diskImage` a fresh disk for which a prepared memory is kept, so that the `create` that comes next has less to
   * do. False: nothing was made, for nothing is kept that fits.
   */
  freshDisk(files: MachineFiles, resources: MachineResources): Promise<boolean>;
  /** How many machines are ready now, by kind. */
  counts(): Record<string, number>;
  /** How many are to be kept ready now, by the same kinds. */
  wanted(): Record<string, number>;
}

/** Whether all machines of a driver are frozen from outside. */
export interface Standstill {
  isOn(): boolean;
}

/** Stops or continues everything in a machine, at once and without a trace in it. Repeatable. */
export interface Freezer {
  freeze(files: MachineFiles, frozen: boolean): Promise<void>;
}

export interface MachineDriver {
  readonly runtime: Runtime;
  /** Of a driver that keeps machines ready, from `start` on. */
  readonly ready?: ReadyMachines | undefined;
  /** Of a driver whose machines can stand still. */
  readonly freezer?: Freezer | undefined;
  /** While `isStill` says so, machines are frozen from outside: that they do not answer says nothing of them. */
  standStillWhile?(isStill: () => boolean): void;
  /** Self-test on this machine; throws failed_precondition in public wording when it cannot run here. */
  probe(): Promise<void>;
  /** Builds or finds the template, starts keeping machines ready. Called once, after probe. */
  start(ready?: ReadyHooks): Promise<void>;
  /** Stops keeping machines ready and destroys the unused ones; given-out machines go on. */
  stop(): Promise<void>;

  /** A new machine on an existing disk image. Answers when the agent listens; the disk is attached. Not yet assigned. */
  create(files: MachineFiles, resources: MachineResources): Promise<RunningMachine>;
  /** Finds a machine again after a restart of the service; undefined when no process of it lives. */
  adopt(files: MachineFiles): Promise<RunningMachine | undefined>;

  /** The disk at one crash-consistent, quiesced instant, as a reflink clone at `toImage`, which the caller syncs. The machine goes on. */
  checkpointDisk(files: MachineFiles, toImage: string, hooks: SnapshotHooks): Promise<{ pauseMs: number }>;
  /**
   * Replaces the disk under the living agent by the image `toImage`, which the caller made (a clone of a checkpoint) and
   * from then on names as `diskImage`. When it throws, `files.diskImage` is attached again. The caller calls AttachDisk
   * afterwards in either case, and can swap back when the agent refuses the new disk: so the caller keeps the old image
   * until it has committed to the new one.
   */
  swapDisk(files: MachineFiles, toImage: string, hooks: SnapshotHooks): Promise<void>;

  /**
   * Memory and disk at one instant into `into`. With `stop` everything in `into` is durable when it answers and the machine
   * stays paused, not yet gone: the caller records the suspension and calls stopMachine, or `unblock` to go on.
   */
  snapshot(
    files: MachineFiles,
    into: SnapshotFiles,
    options: { stop: boolean },
    hooks: SnapshotHooks,
  ): Promise<SnapshotTimes>;
  /** Lets a machine go on that a crash of the service left paused or frozen in the middle of a snapshot. Repeatable. */
  unblock(files: MachineFiles): Promise<void>;
  /** Throws ImageMismatchError for a snapshot of which `restore` would say so without making a machine. */
  requireRestorable(from: SnapshotFiles): Promise<void>;
  /**
   * Hosts whose answers are equal restore each other's memory, where both have the agent of that content. `from`: of that snapshot,
   * else of those made now. Undefined, or no such method: the memory is of use on this host only.
   */
  memoryClass?(from?: SnapshotFiles): Promise<string | undefined>;
  /**
   * A machine from a snapshot: the same one again (resume) or a clone with new files (fork). The caller made
   * `files.diskImage` as a clone of `snapshotDisk(from)`. Never changes `from`.
   */
  restore(files: MachineFiles, from: SnapshotFiles, resources: MachineResources): Promise<RunningMachine>;

  stats(files: MachineFiles): Promise<MachineStats>;
  /** Calls back when the machine's process ends by itself, with a public reason. */
  onExit(listener: (id: string, reason: string) => void): void;
  /**
   * Kills the machine's processes, beside whatever else is under way with it, which then fails. Gives nothing back: `stopMachine` does. `onExit` tells of it as of any end. Repeatable.
   */
  endNow(files: MachineFiles): Promise<void>;
  /** Stops the machine's processes and gives back loops, mounts, network slot, cgroups; keeps disk image and directory. */
  stopMachine(files: MachineFiles): Promise<void>;
  /** stopMachine, and removes what the driver made in `dir`. Repeatable, for a half-made machine too. */
  destroy(files: MachineFiles): Promise<void>;
  /** Removes what machines of ids not in `keep` left on this machine: processes, mounts, namespaces, cgroups. */
  sweep(keep: ReadonlySet<string>): Promise<string[]>;
}
