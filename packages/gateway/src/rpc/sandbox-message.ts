import { rfc3339 } from "@cloche/base";
import type { ValueSchema } from "@bufbuild/protobuf/wkt";
import { allPorts, humanBytes, type PublicPorts, type SandboxState as StateName } from "@cloche/protocol";
import type {
  HostCheckpoint,
  MachineEgress,
  MachineMetrics,
  MachineSampleSchema,
} from "@cloche/protocol/host";
import { type Checkpoint, type Sandbox, SandboxState } from "@cloche/protocol/public";
import type { MessageInitShape } from "@bufbuild/protobuf";
import type {
  CheckpointSchema,
  GetSandboxEgressResponseSchema,
  GetSandboxMetricsResponseSchema,
  SandboxSchema,
} from "@cloche/protocol/public";
import { isDurable, type SandboxRecord } from "../database/sandbox-record.ts";

const stateNumbers: Record<StateName, SandboxState> = {
  SANDBOX_STATE_CREATING: SandboxState.CREATING,
  SANDBOX_STATE_RUNNING: SandboxState.RUNNING,
  SANDBOX_STATE_SUSPENDING: SandboxState.SUSPENDING,
  SANDBOX_STATE_SUSPENDED: SandboxState.SUSPENDED,
  SANDBOX_STATE_RESUMING: SandboxState.RESUMING,
  SANDBOX_STATE_DELETING: SandboxState.DELETING,
  SANDBOX_STATE_ERROR: SandboxState.ERROR,
};

/** The state of this number; undefined for UNSPECIFIED and unknown numbers. */
export function stateName(number: SandboxState): StateName | undefined {
  const found = Object.entries(stateNumbers).find(([, value]) => value === number);
  return found?.[0] as StateName | undefined;
}

/** `<port>-<id>` or `<id>` below the base domain, with the edge's port where that is not 443. */
export interface Domains {
  baseDomain: string;
  edgePort: number;
}

export const sandboxDomain = (domains: Domains, label: string): string =>
  `${label}.${domains.baseDomain}${domains.edgePort === 443 ? "" : `:${domains.edgePort}`}`;

/** The Sandbox of spec/contract.md with the added fields. */
export function sandboxMessage(
  record: SandboxRecord,
  domains: Domains,
  isCluster: boolean,
): MessageInitShape<typeof SandboxSchema> {
  return {
    id: record.id,
    name: record.name,
    state: stateNumbers[record.state],
    domain: record.firstRanAtMs === null ? "" : sandboxDomain(domains, record.id),
    createdAt: rfc3339(record.createdAtMs),
    updatedAt: rfc3339(record.updatedAtMs),
    sourceSandboxId: record.sourceSandboxId,
    errorMessage: record.errorMessage,
    metadata: record.metadata,
    runtime: record.runtime,
    cpus: record.cpus,
    memoryMb: record.memoryMb,
    diskMb: record.diskMb,
    template: record.template,
    timeoutSeconds: record.timeoutSeconds,
    idleSuspendSeconds: record.idleSuspendSeconds,
    autoResume: record.autoResume,
    onTimeout: record.onTimeout,
    onHostLoss: record.onHostLoss,
    checkpointEverySeconds: record.checkpointEverySeconds,
    hostId: isCluster ? record.hostId : "",
    createdBy: record.createdBy,
    durable: isDurable(record),
    expiresAt: record.expiresAtMs === null ? "" : rfc3339(record.expiresAtMs),
    sourceCheckpointId: record.sourceCheckpointId,
    publicPorts: record.publicPorts.map(portValue),
    egress: record.egress,
  } satisfies Partial<Record<keyof Sandbox, unknown>>;
}

const portValue = (port: PublicPorts[number]): MessageInitShape<typeof ValueSchema> => ({
  kind: port === allPorts ? { case: "stringValue", value: port } : { case: "numberValue", value: port },
});

/** `denied`: the host's counts; undefined while the host has no machine of the sandbox. */
export function egressMessage(
  { egress }: SandboxRecord,
  denied: MachineEgress | undefined,
): MessageInitShape<typeof GetSandboxEgressResponseSchema> {
  return {
    egress,
    deniedPackets: denied?.deniedPackets ?? 0,
    deniedNames: denied?.deniedNames ?? 0,
    recentDenials: (denied?.recent ?? []).map(({ destination, protocol, port, count, lastAtUnixMs }) => ({
      destination,
      protocol,
      port,
      count,
      lastAt: rfc3339(lastAtUnixMs),
    })),
  };
}

/** `metrics`: the host's measurements; undefined while the host has no machine of the sandbox. */
export function metricsMessage(
  metrics: MachineMetrics | undefined,
  nowMs: number,
): MessageInitShape<typeof GetSandboxMetricsResponseSchema> {
  const nothing = { atUnixMs: nowMs, cpuShare: 0, memoryBytes: 0, diskBytes: 0, processes: 0 };
  return {
    now: sampleMessage(metrics?.now ?? nothing),
    history: (metrics?.history ?? []).map(sampleMessage),
  };
}

const sampleMessage = ({
  atUnixMs,
  ...sample
}: Omit<MessageInitShape<typeof MachineSampleSchema>, "$typeName" | "$unknown"> & { atUnixMs?: number }) => {
  const { cpuShare = 0, memoryBytes = 0, diskBytes = 0, processes = 0 } = sample;
  const { networkReceivedBytes = 0, networkSentBytes = 0 } = sample;
  const at = rfc3339(atUnixMs ?? 0);
  return { at, cpuShare, memoryBytes, diskBytes, networkReceivedBytes, networkSentBytes, processes };
};

export function checkpointMessage(checkpoint: HostCheckpoint): MessageInitShape<typeof CheckpointSchema> {
  const { id, name, sandboxId, createdAt, sizeBytes, visible, runtime, automatic } = checkpoint;
  return {
    id,
    name,
    sandboxId,
    createdAt,
    sizeBytes,
    sizeHuman: humanBytes(sizeBytes),
    visible,
    runtime,
    automatic,
  } satisfies Partial<Checkpoint>;
}
