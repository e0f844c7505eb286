// What the gateway demands of the fields of a request beyond their types, and what it says of those of an answer, as JSON
// Schema. The numbers are the service's own, so that the document cannot promise others.
import {
  defaults,
  displayNamePattern,
  egressModes,
  limits,
  onHostLosses,
  onTimeouts,
} from "@cloche/protocol";

/** Keywords that join those of the field's type; `required` is the field's own, `items` joins that of a list. */
export interface Constraint {
  required?: true;
  [keyword: string]: unknown;
}

const idPattern = (prefix: string): string => `${prefix}-[a-z0-9]{20}`;
const requiredId = (prefix: string): Constraint => ({ required: true, pattern: `^${idPattern(prefix)}$` });
const id = (prefix: string): Constraint => ({ pattern: `^${idPattern(prefix)}$` });
/** An id that may be left out. */
const idOrEmpty = (prefix: string): Constraint => ({ pattern: `^(${idPattern(prefix)})?$` });
const whole = (minimum: number, maximum: number, more: Constraint = {}): Constraint => ({
  minimum,
  maximum,
  ...more,
});
const seconds = whole(0, limits.timeoutSecondsMax);
const checkpointEvery: Constraint = {
  anyOf: [
    { const: 0 },
    { minimum: limits.checkpointEverySecondsMin, maximum: limits.checkpointEverySecondsMax },
  ],
};
const displayName = { maxLength: limits.sandboxNameLength, pattern: displayNamePattern };
const idempotencyKey: Constraint = {
  minLength: 1,
  maxLength: limits.idempotencyKeyLength,
  pattern: displayNamePattern,
};
const time: Constraint = { format: "date-time" };
const timeOrEmpty: Constraint = { anyOf: [{ format: "date-time" }, { const: "" }] };
const countOfBytes: Constraint = { type: "integer", minimum: 0 };
const noNul = "^[^\\u0000]*$";
const metadata: Constraint = {
  maxProperties: limits.metadataEntries,
  propertyNames: { minLength: 1, maxLength: limits.metadataKeyLength, pattern: noNul },
  additionalProperties: { type: "string", maxLength: limits.metadataValueLength, pattern: noNul },
};
const environment: Constraint = {
  maxProperties: limits.envEntries,
  propertyNames: { pattern: "^[^=\\u0000]+$" },
  additionalProperties: { type: "string", pattern: noNul },
};
const ports: Constraint = {
  maxItems: limits.publicPorts,
  items: {
    oneOf: [
      { type: "integer", minimum: 1, maximum: 65_535, not: { const: defaults.agentPort } },
      { type: "string", const: "*" },
    ],
  },
  if: { type: "array", contains: { const: "*" } },
  // oxlint-disable-next-line unicorn/no-thenable -- JSON Schema's keyword
  then: { maxItems: 1 },
};
const egress: Record<string, Constraint> = {
  mode: { enum: [...egressModes] },
  domains: {
    maxItems: limits.egressDomains,
    items: { type: "string", format: "egress-domain", examples: ["*.example.org:443"] },
  },
  cidrs: {
    maxItems: limits.egressCidrs,
    items: { type: "string", format: "egress-cidr", examples: ["203.0.113.0/24"] },
  },
};

/** Of a message by its name, then of its fields. `Input` is the form of a message that requests and answers share. */
export const constraints: Readonly<Record<string, Readonly<Record<string, Constraint>>>> = {
  Sandbox: {
    id: id("sbx"),
    created_at: time,
    updated_at: time,
    expires_at: timeOrEmpty,
    source_sandbox_id: idOrEmpty("sbx"),
    source_checkpoint_id: idOrEmpty("ckpt"),
    on_timeout: { enum: [...onTimeouts] },
    on_host_loss: { enum: [...onHostLosses] },
    public_ports: ports,
  },
  Egress: egress,
  EgressInput: { ...egress, mode: { required: true, ...egress["mode"] } },
  CreateSandboxRequest: {
    name: displayName,
    checkpoint_id: idOrEmpty("ckpt"),
    template: { examples: [defaults.template] },
    metadata,
    env: environment,
    cpus: whole(limits.cpusMin, limits.cpusMax),
    memory_mb: whole(limits.memoryMbMin, limits.memoryMbMax),
    disk_mb: whole(limits.diskMbMin, limits.diskMbMax),
    runtime: { enum: ["", "gvisor", "qemu"] },
    timeout_seconds: seconds,
    idle_suspend_seconds: seconds,
    on_timeout: { enum: ["", ...onTimeouts] },
    on_host_loss: { enum: ["", ...onHostLosses] },
    checkpoint_every_seconds: checkpointEvery,
    public_ports: ports,
    idempotency_key: idempotencyKey,
  },
  GetSandboxRequest: { id: requiredId("sbx") },
  ListSandboxesRequest: {
    order_by: { enum: ["", "created_at", "-created_at", "name", "-name"] },
    name: displayName,
  },
  DeleteSandboxRequest: { id: requiredId("sbx") },
  SuspendSandboxRequest: { id: requiredId("sbx") },
  ResumeSandboxRequest: { id: requiredId("sbx") },
  ForkSandboxRequest: {
    source_sandbox_id: requiredId("sbx"),
    name: displayName,
    checkpoint_id: idOrEmpty("ckpt"),
    metadata,
    timeout_seconds: seconds,
    idle_suspend_seconds: seconds,
    on_host_loss: { enum: [...onHostLosses] },
    checkpoint_every_seconds: checkpointEvery,
    idempotency_key: idempotencyKey,
    count: whole(1, limits.forkCount),
  },
  IssueDataPlaneTokenRequest: { sandbox_id: requiredId("sbx") },
  MetadataMap: { entries: metadata },
  PortList: { ports },
  UpdateSandboxRequest: {
    id: requiredId("sbx"),
    name: { minLength: 1, ...displayName },
    timeout_seconds: seconds,
    idle_suspend_seconds: seconds,
    on_timeout: { enum: [...onTimeouts] },
    on_host_loss: { enum: [...onHostLosses] },
    checkpoint_every_seconds: checkpointEvery,
  },
  Checkpoint: { id: id("ckpt"), sandbox_id: id("sbx"), created_at: time, size_bytes: countOfBytes },
  ListCheckpointsRequest: { sandbox_id: idOrEmpty("sbx") },
  DeleteCheckpointRequest: { id: requiredId("ckpt") },
  DeleteCheckpointResponse: { freed_bytes: countOfBytes },
  IssuePortLinkRequest: {
    sandbox_id: requiredId("sbx"),
    port: whole(1, 65_535, { required: true, not: { const: defaults.agentPort } }),
    path: { pattern: "^(/([\\x21-\\x2e\\x30-\\x5b\\x5d-\\x7e][\\x21-\\x7e]{0,1999})?)?$" },
  },
  GetUsageRequest: { sandbox_id: idOrEmpty("sbx"), from: timeOrEmpty, to: timeOrEmpty },
  SandboxUsage: { sandbox_id: id("sbx"), first_ran_at: time, last_ran_at: time },
  GetUsageResponse: { from: timeOrEmpty, to: time },
  ApiKey: { id: id("key"), created_at: time, expires_at: timeOrEmpty, last_used_at: timeOrEmpty },
  CreateApiKeyRequest: { name: displayName, expires_in_seconds: seconds },
  RevokeApiKeyRequest: { id: requiredId("key") },
  GetSandboxMetricsRequest: { id: requiredId("sbx") },
  MetricsSample: {
    at: time,
    cpu_share: { minimum: 0, maximum: 1 },
    memory_bytes: countOfBytes,
    disk_bytes: countOfBytes,
    network_received_bytes: countOfBytes,
    network_sent_bytes: countOfBytes,
  },
  GetSandboxEgressRequest: { id: requiredId("sbx") },
  GetSandboxEgressResponse: { denied_packets: countOfBytes, denied_names: countOfBytes },
  EgressDenial: { protocol: { enum: ["tcp", "udp", "dns"] }, count: countOfBytes, last_at: time },
  ListAuditEntriesRequest: { page_size: whole(0, limits.pageSize) },
  AuditEntry: { at: time },
};
