/** The parts that the composition root makes and gives to a host. */
import type { Clock, Log, Metrics } from "@cloche/base";
import type { CheckpointLimits } from "@cloche/protocol";
import type { BlobStore } from "./blob/blob-store.ts";
import type { CheckpointNames, SweepCalls } from "./checkpoint/checkpoint-names.ts";
import type { Templates } from "./disk/template.ts";
import type { MachineDriver, Runtime } from "./drivers/driver.ts";
import type { EgressControl } from "./network/egress-control.ts";
import type { LeaseGuard } from "./lease/host-lease.ts";
import type { HostDescription, RegistryClient } from "./lease/lease-keeper.ts";
import type { HostJournal } from "./operations/journal.ts";
import type { Native } from "./sys/native.ts";

/** Parts of a host in a cluster only. */
export interface ClusterParts {
  /** The description that this host registers with, called once; the host adds runtimes and CPU class. */
  registration(): Omit<HostDescription, "runtimes" | "cpuClass">;
  /** Clients of all gateways, in the order they are tried. */
  gateways: readonly RegistryClient[];
  /** Freezes this host's machines when its lease is over: a `Guard`. */
  guard: LeaseGuard;
  /** The names of objects in storage. */
  names: CheckpointNames & SweepCalls;
}

export interface HostParts {
  /** Directory of the reflink pool. */
  poolDir: string;
  /** Directory of this instance on a tmpfs: empty after a reboot. */
  runDir: string;
  /** The first is the default runtime. */
  drivers: ReadonlyMap<Runtime, MachineDriver>;
  templates: Templates;
  native: Native;
  /** Storage of checkpoints. */
  blobs: BlobStore;
  /** Default: the host is in no cluster. */
  cluster?: ClusterParts;
  /** The journal of operations under way; default: a file below `runDir`. */
  journal?: HostJournal;
  /** Name servers that sandboxes ask. */
  dnsServers: readonly string[];
  /** Limits for each team. Default: `defaults.checkpointLimits`. */
  checkpointLimits?: CheckpointLimits;
  /** What machines may reach, by their address. */
  egress: EgressControl;
  clock: Clock;
  log: Log;
  /** Where the host registers its metrics; default: a registry that is not published. */
  metrics?: Metrics;
  /** A machine may doze after this long without programs of users and requests; default 0: never. */
  dozeSeconds?: number;
  /** Logs the steps of each operation with their times. */
  traceOperations?: boolean;
  randomBytes: (length: number) => Uint8Array;
}
