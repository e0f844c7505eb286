/** Checkpoint: saves a machine's disk, as it is at one instant, in the catalogue. */
import { stat } from "node:fs/promises";
import { step } from "@cloche/base";
import { isServiceName } from "@cloche/protocol";
import type { CheckpointCatalogue, CheckpointInfo } from "../checkpoint/catalogue.ts";
import type { CheckpointHeader } from "../checkpoint/manifest.ts";
import type { CheckpointQuota } from "../checkpoint/quota.ts";
import { requireSpace } from "../pool/reserve.ts";
import type { Parts } from "./parts.ts";

export interface CheckpointParts
  extends Parts<"machines" | "queue" | "agents" | "drivers" | "poolDir" | "native" | "log"> {
  checkpoints: CheckpointCatalogue;
  quota: CheckpointQuota;
}

const blockBytes = 512;

/** Saves the disk at one instant, including every write answered before the call. The sandbox keeps running. */
export function takeCheckpoint(
  parts: CheckpointParts,
  id: string,
  name: string,
): Promise<{ info: CheckpointInfo; copyMs: number }> {
  const { teamId } = parts.machines.get(id);
  return parts.quota.within(teamId, () =>
    parts.queue.timed("checkpoint", id, () => take(parts, id, { name })),
  );
}

/** A checkpoint that the service takes by itself. Repeatable: a checkpoint that already has this id is returned. */
export function takeAutomaticCheckpoint(
  parts: CheckpointParts,
  id: string,
  { checkpointId, name }: { checkpointId: string; name: string },
): Promise<CheckpointInfo> {
  const { teamId } = parts.machines.get(id);
  // The host that took a checkpoint lists it from the start, even before its upload has ended.
  const known = (): CheckpointInfo | undefined =>
    parts.checkpoints.list(teamId, id).find((one) => one.id === checkpointId);
  return parts.queue.timed("checkpoint", id, async () => {
    const header = { name, automatic: true } as const;
    const taken = (): Promise<CheckpointInfo> =>
      take(parts, id, header, checkpointId).then(({ info }) => info);
    return known() ?? (await parts.quota.within(teamId, taken));
  });
}

/** `checkpointId`: default a new id. */
async function take(
  { machines, agents, drivers, poolDir, checkpoints }: CheckpointParts,
  id: string,
  labels: Pick<CheckpointHeader, "name" | "automatic">,
  checkpointId?: string,
): Promise<{ info: CheckpointInfo; copyMs: number }> {
  const record = machines.require(id, "running");
  await requireSpace(poolDir);
  const reservation = await checkpoints.reserve(checkpointId);
  try {
    const began = performance.now();
    let services: string[] = [];
    const flush = async (): Promise<void> => {
      const { runningServices } = await agents.of(record).prepareCheckpoint();
      // The agent is not trusted: a manifest with other names cannot be read.
      services = runningServices.filter(isServiceName);
    };
    const hooks = { flush, detachDisk: () => Promise.reject(new Error("a checkpoint keeps the disk")) };
    await drivers.of(record).checkpointDisk(machines.files(record), reservation.image, hooks);
    const { blocks, size } = await stat(reservation.image);
    const header = {
      ...labels,
      team_id: record.teamId,
      sandbox_id: id,
      size_bytes: blocks * blockBytes,
      runtime: record.runtime,
      disk_bytes: size,
      disk_mb: record.diskMb,
      running_services: services,
    };
    const info = await step("commit", () => checkpoints.commit(reservation, header, record.checkpointId));
    return { info, copyMs: performance.now() - began };
  } catch (error) {
    await reservation.abandon();
    throw error;
  }
}
