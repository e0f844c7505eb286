/** HostService (spec/proto/cloche/host/v1) over the machines of this host. Every call can be repeated. */
import { logIds, withRequestIds } from "@cloche/base";
import {
  ClocheError,
  egressModes,
  internalHeaders,
  isCheckpointId,
  isDisplayName,
  isSandboxId,
  limits,
  listPositionText,
  machineFields,
  parseListPosition,
  traceparentHeader,
  traceparentOf,
} from "@cloche/protocol";
import { create } from "@bufbuild/protobuf";
import { type Egress, type HostService, type MachineSpec, MachineSpecSchema } from "@cloche/protocol/host";
import type { HandlerContext, ServiceImpl } from "@connectrpc/connect";
import type { CheckpointCatalogue, CheckpointInfo } from "../checkpoint/catalogue.ts";
import type { CheckpointQuota } from "../checkpoint/quota.ts";
import type { MachineEgress, Runtime } from "../drivers/driver.ts";
import { checkEgress, policyOf } from "../network/egress.ts";
import { takeAutomaticCheckpoint } from "../operations/checkpoint-machine.ts";
import { applyEgress } from "../operations/apply-egress.ts";
import { type CallGate, openGate } from "../lease/call-fence.ts";
import { connectErrorFrom } from "./connect-errors.ts";
import { cutOffAfter } from "../operations/cut-off.ts";
import type { MachineSamples } from "../samples/machine-samples.ts";
import type { Sample } from "../samples/sample-history.ts";
import { createMachine } from "../operations/create-machine.ts";
import { importMachine } from "../operations/import-machine.ts";
import { destroyMachine } from "../operations/destroy-machine.ts";
import { forkMachine } from "../operations/fork-machine.ts";
import type { MachineRecord, MachineSpecRecord } from "../machines/machine-record.ts";
import type { OperationParts } from "../operations/operation-parts.ts";
import { resumeMachine } from "../operations/resume-machine.ts";
import { suspendMachine } from "../operations/suspend-machine.ts";
import { suspendToDisk } from "../operations/suspend-to-disk.ts";

/** Time for a suspension or fork under way to end before a destroy cuts it off. */
const destroyPatienceMs = 10_000;

const inNoCluster = (): never => {
  throw new ClocheError("unimplemented", "this host is in no cluster");
};

/** Parts of the service that only a host in a cluster has. */
export interface ClusterCalls {
  gate: CallGate;
  /** Lets these machines go on, and destroys all others that were here before the host was declared lost. */
  admit(headers: Headers, sandboxIds: ReadonlySet<string>): Promise<void>;
}
const noCluster: ClusterCalls = { gate: openGate, admit: async () => inNoCluster() };

// oxlint-disable-next-line max-lines-per-function -- a table of methods, a few lines each
export function hostService(
  parts: OperationParts,
  { checkpoints, quota }: { checkpoints: CheckpointCatalogue; quota: CheckpointQuota },
  samples: MachineSamples,
  { gate, admit }: ClusterCalls = noCluster,
): ServiceImpl<typeof HostService> {
  const { machines, queue, agents, drivers, egress, log } = parts;

  /** Runs an operation in the machine's turn. Logs a failure with its private cause and throws it as a Connect error. */
  const inTurn = <T>(name: string, id: string, context: Called, body: () => Promise<T>): Promise<T> =>
    withRequestIds(idsOf(context), async () => {
      const began = performance.now();
      const fields = { operation: name, sandbox_id: id, ...logIds() };
      try {
        const stillMay = gate.change(context.requestHeader, id);
        const answer = await queue.timed(name, id, () => {
          stillMay();
          return body();
        });
        log.info({ ...fields, ms: Math.round(performance.now() - began) }, "done");
        return answer;
      } catch (error) {
        log.warn({ ...fields, err: error }, "failed");
        throw connectErrorFrom(error);
      }
    });
  const answer = async <T>(body: () => T | Promise<T>): Promise<T> => {
    try {
      return await body();
    } catch (error) {
      throw connectErrorFrom(error);
    }
  };
  const reading = <T>({ requestHeader }: Called, body: () => T | Promise<T>): Promise<T> =>
    answer(() => {
      gate.check(requestHeader);
      return body();
    });
  const changing = <T>({ requestHeader }: Called, body: () => T | Promise<T>): Promise<T> =>
    answer(() => {
      gate.change(requestHeader);
      return body();
    });

  return {
    createMachine: async ({ spec }, context) => {
      const record = await answer(() => specRecord(spec, drivers.runtimes));
      return machines.message(await inTurn("create", record.id, context, () => createMachine(parts, record)));
    },
    destroyMachine: async ({ sandboxId }, context) => {
      // A destroy needs nothing from the machine, but an operation under way may wait for it.
      await cutOffAfter(parts, sandboxId, destroyPatienceMs, "the machine is to be destroyed", () =>
        inTurn("destroy", sandboxId, context, () => destroyMachine(parts, sandboxId)),
      );
      return {};
    },
    suspendMachine: async ({ sandboxId, diskOnly }, context) => {
      // What is left of the machine is freed behind the answer, in the same turn: a resume waits for it.
      const suspended = Promise.withResolvers<MachineRecord>();
      const freed = inTurn("suspend", sandboxId, context, () =>
        diskOnly ? suspendToDisk(parts, sandboxId) : suspendMachine(parts, sandboxId, suspended.resolve),
      );
      return machines.message(await Promise.race([suspended.promise, freed]));
    },
    resumeMachine: async ({ sandboxId }, context) =>
      machines.message(await inTurn("resume", sandboxId, context, () => resumeMachine(parts, sandboxId))),
    importMachine: async ({ spec, imageKey }, context) => {
      const record = await answer(() => specRecord(spec, drivers.runtimes));
      const bring = (): Promise<MachineRecord> => importMachine(parts, record, imageKey);
      return machines.message(await inTurn("import", record.id, context, bring));
    },
    admitMachines: ({ sandboxIds }, context) =>
      answer(async () => {
        await admit(context.requestHeader, new Set(sandboxIds));
        return {};
      }),
    forkMachine: async ({ sourceSandboxId, spec, group }, context) => {
      const record = await answer(() => specRecord(spec, drivers.runtimes));
      const fork = (): Promise<MachineRecord> => forkMachine(parts, sourceSandboxId, record, group);
      return machines.message(await inTurn("fork", record.id, context, fork));
    },
    endForkGroup: ({ group }, context) =>
      changing(context, async () => {
        await parts.groups.end(group);
        return {};
      }),
    getMachine: ({ sandboxId }, context) =>
      reading(context, () => {
        const record = machines.get(sandboxId);
        return { ...machines.message(record), spec: specMessage(record) };
      }),
    listMachines: (_request, context) =>
      reading(context, () => ({ machines: machines.all().map((record) => machines.message(record)) })),
    watchMachines: async function* (_request, context) {
      await reading(context, () => undefined);
      yield* machines.events.watch(context.signal);
    },
    updateMachine: ({ sandboxId, idleSuspendSeconds, name, egress: policy }, context) =>
      inTurn("update", sandboxId, context, async () => {
        const wanted = policy === undefined ? undefined : egressRecord(policy);
        const fields = {
          ...(idleSuspendSeconds === undefined ? {} : { idleSuspendSeconds }),
          ...(name === undefined ? {} : { name }),
          ...(wanted === undefined || isOlder(wanted, machines.get(sandboxId)) ? {} : { egress: wanted }),
        };
        const record = await machines.change(sandboxId, fields, { durable: true });
        // The record first: after a crash the next start applies it.
        if (wanted !== undefined) await applyEgress(parts, record);
        return machines.message(record);
      }),
    getMachineEgress: ({ sandboxId }, context) =>
      reading(context, async () => {
        const { agentHost } = machines.get(sandboxId);
        if (agentHost === "") return {};
        const { deniedPackets, deniedNames, recent } = await egress.reportOf(agentHost);
        const shown = recent.map(({ lastAtMs, ...denial }) => ({ ...denial, lastAtUnixMs: lastAtMs }));
        return { deniedPackets, deniedNames, recent: shown };
      }),
    getMachineMetrics: ({ sandboxId }, context) =>
      reading(context, async () => {
        const record = machines.get(sandboxId);
        const now = sampleMessage(await samples.now(record));
        return { now, history: samples.history(sandboxId).map(sampleMessage) };
      }),
    setVerificationKeys: async ({ issuer, keys }, context) => {
      // Allowed even when the lease is over: a gateway sends the keys only once, when it first reaches the host.
      await reading(context, () => agents.keys.set({ issuer, keys: keys.map(readKey) }));
      return {};
    },
    checkpointMachine: ({ sandboxId, checkpointId, name }, context) =>
      withRequestIds(idsOf(context), () =>
        changing(context, async () => {
          const isNamed = isDisplayName(name, limits.checkpointNameLength);
          if (!isCheckpointId(checkpointId) || !isNamed)
            throw new ClocheError("invalid_argument", "checkpoint_id and name must be those of a checkpoint");
          const wanted = { checkpointId, name };
          const info = await takeAutomaticCheckpoint({ ...parts, checkpoints, quota }, sandboxId, wanted);
          return checkpointMessage(info);
        }),
      ),
    listCheckpoints: ({ teamId, sandboxId, limit, pageToken, id }, context) =>
      reading(context, async () => {
        if (id !== "") {
          const one = await checkpoints.find(teamId, id).catch(onlyUnknown);
          const isMeant = one !== undefined && (sandboxId === "" || one.sandbox_id === sandboxId);
          return { checkpoints: isMeant ? [checkpointMessage(one)] : [], nextPageToken: "" };
        }
        const page = await checkpoints.page(teamId, sandboxId, {
          limit: Math.min(limit || limits.unpagedList, limits.unpagedList),
          after: pageToken === "" ? undefined : parseListPosition("page_token", pageToken),
        });
        return {
          checkpoints: page.checkpoints.map(checkpointMessage),
          nextPageToken: page.next ? listPositionText(page.next) : "",
        };
      }),
    deleteCheckpoint: ({ teamId, id }, context) =>
      changing(context, async () => ({ freedBytes: await checkpoints.delete(teamId, id) })),
    getHostInfo: (_request, context) =>
      reading(context, () => ({
        runtimes: drivers.runtimes,
        templates: ["base"],
        arch: process.arch,
        machines: machines.all().length,
      })),
  };
}

const sampleMessage = ({ atMs, receivedBytes, sentBytes, ...sample }: Sample) => ({
  ...sample,
  atUnixMs: atMs,
  networkReceivedBytes: receivedBytes,
  networkSentBytes: sentBytes,
});

function onlyUnknown(error: unknown): undefined {
  if (ClocheError.from(error).code !== "not_found") throw error;
}

type Called = Pick<HandlerContext, "requestHeader">;

const idsOf = ({ requestHeader }: Called) => ({
  requestId: requestHeader.get(internalHeaders.requestId) ?? "",
  traceparent: traceparentOf(requestHeader.get(traceparentHeader)),
});

const checkpointMessage = (info: CheckpointInfo) => ({
  id: info.id,
  name: info.name,
  teamId: info.team_id,
  sandboxId: info.sandbox_id,
  createdAt: info.created_at,
  sizeBytes: info.size_bytes,
  visible: info.visible,
  runtime: info.runtime,
  diskMb: info.disk_mb,
  automatic: info.automatic === true,
});

function specRecord(spec: MachineSpec | undefined, runtimes: readonly Runtime[]): MachineSpecRecord {
  if (!spec) throw new ClocheError("invalid_argument", "spec is missing");
  if (!isSandboxId(spec.sandboxId))
    throw new ClocheError(
      "invalid_argument",
      `sandbox_id: ${JSON.stringify(spec.sandboxId)} is no sandbox id`,
    );
  const runtime = spec.runtime === "" ? runtimes[0] : runtimes.find((one) => one === spec.runtime);
  if (runtime === undefined)
    throw new ClocheError(
      "failed_precondition",
      `runtime: ${spec.runtime} is not available on this host; available: ${runtimes.join(", ")}`,
    );
  return {
    ...machineFields(spec),
    id: spec.sandboxId,
    runtime,
    checkpointId: spec.checkpointId,
    ...(spec.egress === undefined ? {} : { egress: egressRecord(spec.egress) }),
  };
}

/** What CreateMachine would be asked for to make this machine: of one whose record is lost (`cloche orphans`). */
const specMessage = (record: MachineRecord) =>
  create(MachineSpecSchema, {
    ...machineFields(record),
    sandboxId: record.id,
    checkpointId: record.checkpointId,
    ...(record.egress !== undefined && { egress: record.egress }),
  });

function egressRecord({ mode, domains, cidrs, revision }: Egress): MachineEgress {
  const known = egressModes.find((one) => one === mode);
  if (known === undefined)
    throw new ClocheError("invalid_argument", `egress.mode: ${JSON.stringify(mode)} is unknown`);
  const egress = { mode: known, domains, cidrs, revision };
  checkEgress(policyOf(egress));
  return egress;
}

const isOlder = (wanted: MachineEgress, { egress }: MachineSpecRecord): boolean =>
  egress !== undefined && wanted.revision < egress.revision;

function readKey({ kid, jwkJson }: { kid: string; jwkJson: string }) {
  const jwk = JSON.parse(jwkJson) as Record<string, unknown>;
  const { kty, n, e } = jwk;
  if (typeof kty !== "string" || typeof n !== "string" || typeof e !== "string")
    throw new ClocheError("invalid_argument", `keys: ${kid} is no RSA public key`);
  return { kid, jwk: { kty, n, e } };
}
