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
  /** In force before any program of the user runs. Absent: open. */
  egress?: MachineEgress;
  /** Whose machines share bounds of the host's network with this one. Absent: nobody's. */
  teamId?: string;
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
  /** Only for a machine made ahead: the `assignment` of its `ReadyIdentity`. */
  assignment?: string;
}

/** The identity of a machine made ahead: it becomes the sandbox with this id if that is created. */
export interface ReadyIdentity {
  sandboxId: string;
  name: string;
  /** The secret that the agent accepts from now on. */
  secret: string;
  /** Digest of all that the Assign told. If a new Assign would have the same digest, none is needed. */
  assignment: string;
}

/** Where an agent of this release is reached. */
export interface AgentAddress {
  agentHost: string;
  agentPort: number;
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

/** How the layer above prepares machines ahead of requests, for drivers that keep ready machines. */
export interface ReadyHooks {
  /** Names the inputs that disks and agents are made from. A template made with another key is not used. */
  readonly key: string;
  /** A fresh disk of the default size as a file at `image`. */
  disk(image: string): Promise<void>;
  /** Sends Prepare to that agent, which accepts `secret`. */
  prepare(agent: AgentAddress, secret: string): Promise<void>;
  /** Sends Assign to the prepared agent, as a sandbox of the default shape that is not created yet. */
  assign(agent: AgentAddress, secret: string): Promise<ReadyIdentity>;
  /** Tells the identities of all machines kept ready now. */
  offer(identities: ReadyIdentity[]): void;
  /** Sends PrepareSnapshot and PrepareCheckpoint to the prepared agent: then it can be saved with its disk. */
  flush(agent: AgentAddress, secret: string): Promise<void>;
  /** Sends DetachDisk to the prepared agent. */
  detachDisk(agent: AgentAddress, secret: string): Promise<void>;
}

/** Machines made before anybody asks for them. */
export interface ReadyMachines {
  /**
   * Gives out a machine made ahead, with its fresh disk, which becomes `files.diskImage`; undefined if none that fits is kept.
   * A machine offered under `files.id` is already assigned. Any other has the identity of a sandbox that was never created.
   * `given`: awaited while the machine wakes up, with its disk in place; the machine may still fail to work.
   */
  claim(
    files: MachineFiles,
    resources: MachineResources,
    given: (machine: RunningMachine) => Promise<void>,
  ): Promise<RunningMachine | undefined>;
  /**
   * Makes `files.diskImage` a fresh disk for which a prepared memory is kept, so that the next `create` has less to do.
   * False: nothing was made, because no prepared memory fits.
   */
  freshDisk(files: MachineFiles, resources: MachineResources): Promise<boolean>;
  /** How many machines are ready now, by kind. */
  counts(): Record<string, number>;
  /** How many should be ready now, by the same kinds. */
  wanted(): Record<string, number>;
}

/** Whether all machines of a driver are frozen from outside. */
export interface Standstill {
  isOn(): boolean;
}

/** Freezes or thaws all processes of a machine at once, without a trace inside. Repeatable. */
export interface Freezer {
  freeze(files: MachineFiles, frozen: boolean): Promise<void>;
}

export interface MachineDriver {
  readonly runtime: Runtime;
  /** Only for a driver that keeps machines ready, after `start`. */
  readonly ready?: ReadyMachines | undefined;
  /** Only for a driver that can freeze its machines. */
  readonly freezer?: Freezer | undefined;
  /** While `isStill` answers true, all machines are frozen from outside: do not take one that is silent for hung. */
  standStillWhile?(isStill: () => boolean): void;
  /** Self-test on this machine; throws failed_precondition in public wording when it cannot run here. */
  probe(): Promise<void>;
  /** Builds or finds the template, starts keeping machines ready. Called once, after probe. */
  start(ready?: ReadyHooks): Promise<void>;
  /** Stops keeping machines ready and destroys the unused ones; machines in use keep running. */
  stop(): Promise<void>;

  /** A new machine on an existing disk image. Answers when the agent listens; the disk is attached. Not yet assigned. */
  create(files: MachineFiles, resources: MachineResources): Promise<RunningMachine>;
  /** Finds a machine again after a restart of the service; undefined when no process of it lives. */
  adopt(files: MachineFiles): Promise<RunningMachine | undefined>;

  /** Clones the disk at one quiesced, crash-consistent instant to `toImage` (reflink), which the caller syncs. The machine runs on. */
  checkpointDisk(files: MachineFiles, toImage: string, hooks: SnapshotHooks): Promise<{ pauseMs: number }>;
  /**
   * Replaces the disk under the living agent by the image `toImage`, which the caller made (a clone of a checkpoint) and
   * from then on names as `diskImage`. When it throws, `files.diskImage` is attached again. The caller calls AttachDisk
   * afterwards in either case, and can swap back when the agent refuses the new disk: so the caller keeps the old image
   * until it has committed to the new one.
   */
  swapDisk(files: MachineFiles, toImage: string, hooks: SnapshotHooks): Promise<void>;

  /**
   * Saves memory and disk at one instant into `into`. With `stop`, everything in `into` is durable on return and the machine
   * stays paused but alive: the caller records the suspension and calls stopMachine, or calls `unblock` to let it go on.
   */
  snapshot(
    files: MachineFiles,
    into: SnapshotFiles,
    options: { stop: boolean },
    hooks: SnapshotHooks,
  ): Promise<SnapshotTimes>;
  /** Lets a machine go on that a crash of the service left paused or frozen in the middle of a snapshot. Repeatable. */
  unblock(files: MachineFiles): Promise<void>;
  /**
   * Throws the ImageMismatchError that `restore` would throw, as far as it can be told without making a machine. `descriptionOnly`: only
   * files of at most 16 KiB are in the directory yet.
   */
  requireRestorable(from: SnapshotFiles, options?: { descriptionOnly: boolean }): Promise<void>;
  /**
   * The class of a memory image. Hosts of equal class can restore each other's images if both have the same agent. `from`: the class
   * of that snapshot; default: of snapshots made now. Undefined: only this host can restore the memory. No such method: the driver
   * has no classes; requireRestorable tells whether a host can.
   */
  memoryClass?(from?: SnapshotFiles): Promise<string | undefined>;
  /**
   * A directory of this host with files that never change. Files of the snapshot with the same names are clones of them, and differ in
   * part: only the difference is stored and fetched. Needs only the snapshot's small files.
   */
  memoryBase?(from: SnapshotFiles): Promise<string | undefined>;
  /**
   * A machine from a snapshot: the same one again (resume) or a clone with new files (fork). The caller made
   * `files.diskImage` as a clone of `snapshotDisk(from)`. Never changes `from`.
   */
  restore(files: MachineFiles, from: SnapshotFiles, resources: MachineResources): Promise<RunningMachine>;

  stats(files: MachineFiles): Promise<MachineStats>;
  /** Calls back when the machine's process ends by itself, with a public reason. */
  onExit(listener: (id: string, reason: string) => void): void;
  /**
   * Kills the machine's processes at once, also during another operation, which then fails. Frees nothing else: `stopMachine` does.
   * `onExit` reports it like any other end. Repeatable.
   */
  endNow(files: MachineFiles): Promise<void>;
  /** Stops the machine's processes and gives back loops, mounts, network slot, cgroups; keeps disk image and directory. */
  stopMachine(files: MachineFiles): Promise<void>;
  /** stopMachine, and removes what the driver made in `dir`. Repeatable, for a half-made machine too. */
  destroy(files: MachineFiles): Promise<void>;
  /** Removes what machines of ids not in `keep` left on this machine: processes, mounts, namespaces, cgroups. */
  sweep(keep: ReadonlySet<string>): Promise<string[]>;
}
