/**
 * cloche.host.v1.HostStorageService: through any gateway, hosts name the objects that they put into storage. The caller
 * is the host of the certificate. A host may hold and name only as itself. It finds, lists and drops checkpoints of any
 * team that it names, because a host runs sandboxes of every team, and reaches the whole store anyway.
 */
import { ClocheError, isCheckpointId } from "@cloche/protocol";
import type { HostStorageService } from "@cloche/protocol/host-registry";
import type { HandlerContext, ServiceImpl } from "@connectrpc/connect";
import type { Database } from "../database/database.ts";
import type { NamedCheckpoint } from "../database/stored-names.ts";
import type { StoredPack } from "../database/stored-packs.ts";
import { answering } from "../errors.ts";
import { gatewayLimits } from "../limits.ts";
import { pageOf } from "./team-checkpoints.ts";

const checkpointKey = /^checkpoints\/ckpt-[a-z0-9]{20}$/;
const templateKey = /^checkpoints\/template-[a-z0-9-]{1,50}$/;
const image = /^images\/[a-z0-9-]{1,64}$/;
const packKey = /^pack-[a-z0-9]{20}$/;
/** A list reads the headers of all its checkpoints. With the most services a header has 20 KB. */
const headerLengthMax = 64 * 1024;

/** The limits that are used here, by default those of `gatewayLimits`. */
export type StorageLimits = Record<
  "templateHoldMs" | "storageHoldMs" | "sweepLeaseMs" | "sweepListMs" | "sweepBatch" | "storageGarbageMs",
  number
>;

/** `hostOf`: the id of the host that makes the call, from its certificate; undefined: the caller is no host. */
// oxlint-disable-next-line max-lines-per-function -- a table of methods, a few lines each
export function storageService(
  { storedNames, storageSweep }: Pick<Database, "storedNames" | "storageSweep">,
  hostOf: (context: HandlerContext) => string | undefined,
  limits: StorageLimits = gatewayLimits,
): ServiceImpl<typeof HostStorageService> {
  const asHost = <T>(context: HandlerContext, call: (hostId: string) => Promise<T>) =>
    answering(async () => {
      const caller = hostOf(context);
      if (caller === undefined)
        throw new ClocheError("permission_denied", "hosts alone name what lies in storage");
      return await call(caller);
    });

  return {
    holdObject: ({ name, inherited, own }, context) =>
      asHost(context, async (hostId) => {
        const isTemplate = templateKey.test(name);
        if (!isTemplate && !checkpointKey.test(name) && !image.test(name))
          throw new ClocheError("invalid_argument", `name: ${JSON.stringify(name)} is nothing to hold`);
        const object = { name, isShared: isTemplate, inherited: packsOf(inherited), own: packsOf(own) };
        const { templateHoldMs, storageHoldMs } = limits;
        await storedNames.hold(hostId, object, isTemplate ? templateHoldMs : storageHoldMs);
        return {};
      }),
    releaseObject: ({ name }, context) =>
      asHost(context, async (hostId) => {
        await storedNames.release(hostId, name);
        return {};
      }),
    nameCheckpoint: ({ checkpoint }, context) =>
      asHost(context, async (hostId) => {
        if (checkpoint === undefined) throw new ClocheError("invalid_argument", "checkpoint is missing");
        const { id, teamId, sandboxId, headerJson, packs } = checkpoint;
        const named = { id, teamId, sandboxId, ...readHeader(headerJson, { id, teamId, sandboxId }) };
        await storedNames.nameCheckpoint(hostId, { ...named, packs: packsOf(packs) });
        return {};
      }),
    findCheckpoint: ({ teamId, id }, context) =>
      asHost(context, async () => {
        const known = await storedNames.checkpoint(teamId, id);
        if (known === undefined)
          throw new ClocheError("not_found", `checkpoint_id ${JSON.stringify(id)} does not exist`);
        return { ...messageOf(known), packs: known.packs };
      }),
    listCheckpoints: (query, context) =>
      asHost(context, async () => {
        const { checkpoints, nextPageToken } = await pageOf(storedNames, query);
        return { checkpoints: checkpoints.map(messageOf), nextPageToken };
      }),
    countCheckpoints: ({ teamId }, context) =>
      asHost(context, async () => {
        const { count, bytes } = await storedNames.totals(teamId);
        return { count: BigInt(count), bytes };
      }),
    dropCheckpoint: ({ teamId, id }, context) =>
      asHost(context, async () => ({ freedBytes: (await storedNames.dropCheckpoint(teamId, id)) ?? 0 })),
    claimSweep: (_request, context) =>
      asHost(context, async (hostId) => {
        const { sweepLeaseMs, sweepListMs, sweepBatch, storageGarbageMs } = limits;
        const claim = await storageSweep.claim(hostId, { leaseMs: sweepLeaseMs, listEveryMs: sweepListMs });
        if (claim === undefined) return {};
        await storageSweep.endHolds(sweepBatch);
        const garbage = await storageSweep.garbage(sweepBatch, storageGarbageMs);
        return { isClaimed: true, garbage, listDue: claim.isListDue };
      }),
    findUnnamed: ({ keys }, context) =>
      asHost(context, async () => {
        if (keys.length > limits.sweepBatch)
          throw new ClocheError("invalid_argument", `keys must be at most ${limits.sweepBatch}`);
        return { keys: await storageSweep.unnamed(keys) };
      }),
    reportSwept: ({ keys, listed }, context) =>
      asHost(context, async () => {
        await storageSweep.swept(keys, listed);
        return {};
      }),
  };
}

function packsOf(packs: readonly StoredPack[]): StoredPack[] {
  const wrong = packs.find(({ id, bytes }) => !packKey.test(id) || !Number.isSafeInteger(bytes) || bytes < 0);
  if (wrong !== undefined)
    throw new ClocheError(
      "invalid_argument",
      `packs: ${JSON.stringify(wrong.id)} is no pack of ${wrong.bytes}`,
    );
  return packs.map(({ id, bytes }) => ({ id, bytes }));
}

const messageOf = ({ id, teamId, sandboxId, header }: NamedCheckpoint) => ({
  id,
  teamId,
  sandboxId,
  headerJson: header,
});

/** Reads from the host's CheckpointHeader what lists and the quota need; throws when it is missing. */
function readHeader(
  json: string,
  { id, teamId, sandboxId }: { id: string; teamId: string; sandboxId: string },
): Pick<NamedCheckpoint, "createdAt" | "sizeBytes" | "header"> {
  const header = parsed(json);
  const { created_at: createdAt, size_bytes: sizeBytes } = header;
  const isRight =
    isCheckpointId(id) &&
    header["id"] === id &&
    header["team_id"] === teamId &&
    header["sandbox_id"] === sandboxId &&
    typeof createdAt === "string" &&
    /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/.test(createdAt) &&
    isCount(sizeBytes, Number.MAX_SAFE_INTEGER) &&
    // Lists answer these; a value of another type would make every list of the team fail.
    isText(header["name"] ?? "") &&
    isText(header["runtime"] ?? "") &&
    isCount(header["disk_mb"] ?? 0, diskMbMax);
  if (!isRight)
    throw new ClocheError("invalid_argument", "header_json must be the header of that checkpoint");
  return { createdAt: createdAt as string, sizeBytes: sizeBytes as number, header: json };
}

const diskMbMax = 2 ** 32 - 1;
const isText = (value: unknown): boolean => typeof value === "string" && value.length <= 256;
const isCount = (value: unknown, max: number): boolean =>
  typeof value === "number" && Number.isInteger(value) && value >= 0 && value <= max;

function parsed(json: string): Record<string, unknown> {
  if (json.length > headerLengthMax)
    throw new ClocheError("invalid_argument", `header_json must have at most ${headerLengthMax} characters`);
  try {
    return (JSON.parse(json) ?? {}) as Record<string, unknown>;
  } catch (cause) {
    throw new ClocheError("invalid_argument", "header_json is no JSON", { cause });
  }
}
