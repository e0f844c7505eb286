// What a host is made of: the composition root makes these.
import type { Clock, Log, Metrics } from "@cloche/base";
import type { CheckpointLimits } from "@cloche/protocol";
import type { BlobStore } from "./blob/blob-store.ts";
import type { CheckpointNames, SweepWords } from "./checkpoint/checkpoint-names.ts";
import type { Templates } from "./disk/template.ts";
import type { MachineDriver, Runtime } from "./drivers/driver.ts";
import type { EgressControl } from "./network/egress-control.ts";
import type { LeaseGuard } from "./lease/host-lease.ts";
import type { HostDescription, RegistryClient } from "./lease/lease-keeper.ts";
import type { HostJournal } from "./operations/journal.ts";
import type { Native } from "./sys/native.ts";

/** What a host of a cluster has beside its own. */
export interface ClusterParts {
  /** What this host says of itself, asked when it first registers; runtimes and CPU class it finds out. */
  registration(): Omit<HostDescription, "runtimes" | "cpuClass">;
  /** Clients of every gateway that there is to ask, in the order they are tried. */
  gateways: readonly RegistryClient[];
  /** Freezes this host's machines when its lease is over: a `Guard`. */
  guard: LeaseGuard;
  /** What counts of what lies in storage. */
  names: CheckpointNames & SweepWords;
}

export interface HostParts {
  /** Directory of the reflink pool. */
  poolDir: string;
  /** Of this instance, on a tmpfs: gone after a reboot. */
  runDir: string;
  /** First: the default runtime. */
  drivers: ReadonlyMap<Runtime, MachineDriver>;
  templates: Templates;
  native: Native;
  /** Where checkpoints become durable. */
  blobs: BlobStore;
  /** Default: it is alone. */
  cluster?: ClusterParts;
  /** Where operations under way are written down; default: files below `runDir`. */
  journal?: HostJournal;
  /** Name servers that sandboxes ask. */
  dnsServers: readonly string[];
  /** Of one team. Default: `defaults.checkpointLimits`. */
  checkpointLimits?: CheckpointLimits;
  /** What machines may reach, by their address. */
  egress: EgressControl;
  clock: Clock;
  log: Log;
  /** Where the host tells of itself; default: nowhere that anybody looks. */
  metrics?: Metrics;
  /** After so long a machine in which nothing runs or is asked may doze; default 0: never. */
  dozeSeconds?: number;
  /**
   * Edges reach the agents through the relay alone, which rouses a machine before it sends anything (relay/relay.ts): a machine then
   * dozes without their consent, and nobody is told of it. Default false.
   */
  isRelayed?: boolean;
  /** Logs the steps of each operation with their times. */
  traceOperations?: boolean;
  randomBytes: (length: number) => Uint8Array;
}
