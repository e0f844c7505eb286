/**
 * Import: takes over a suspended machine from an image that another host put into storage. The machine is SUSPENDED here as it was
 * there, and a resume makes no difference. If this host can never restore its memory, only the disk is fetched: it then starts cold.
 *
 *   record (starting) ──▶ files ──▶ commit (suspended)
 *        └ a step fails: everything is removed
 */
import { mkdir, rm } from "node:fs/promises";
import { runSaga, type SagaStep, syncDirectory } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import { ImageMismatchError, snapshotDisk, type SnapshotFiles } from "../drivers/driver.ts";
import type { ImageDescription } from "../suspended/image-description.ts";
import type { StoredImageNote } from "../machines/stored-image-note.ts";
import type { StoredImages } from "../suspended/stored-images.ts";
import type { MachineRecord, MachineSpecRecord } from "../machines/machine-record.ts";
import { requireSpace } from "../pool/reserve.ts";
import { withoutMemory } from "./cold-start-messages.ts";
import { snapshotOf } from "./memory-images.ts";
import type { OperationParts } from "./operation-parts.ts";

export interface ImportContext {
  spec: MachineSpecRecord;
  stored: StoredImageNote;
  /** Set once the files are here. `snapshot`: its directory; undefined: the disk alone. */
  found?: { snapshot?: string; words: string };
}

/** Directory of the memory image. A machine just imported has no other image. */
const snapshotName = "snapshot-1";

/** Answers the machine, suspended. A machine of this id that is already here is answered in any phase. `key`: of the stored image. */
export async function importMachine(
  parts: OperationParts,
  spec: MachineSpecRecord,
  key: string,
): Promise<MachineRecord> {
  const known = parts.machines.find(spec.id);
  if (known !== undefined) return known;
  parts.drivers.of(spec);
  await requireSpace(parts.poolDir);
  const image = await imagesOf(parts).open(key);
  const { record } = image;
  for (const field of ["id", "teamId", "runtime"] as const) {
    if (record[field] !== spec[field])
      throw new ClocheError(
        "failed_precondition",
        `image_key: it is the image of another machine (${field})`,
      );
  }
  const stored = await imagesOf(parts).noteOf(image);
  const context: ImportContext = { spec, stored };
  const saga = { id: spec.id, kind: "import", begun: [], direction: "forward" as const, context };
  await runSaga(saga, importSteps(parts), parts.journal);
  return parts.machines.get(spec.id);
}

export function importSteps(parts: OperationParts): SagaStep<ImportContext>[] {
  const { machines } = parts;
  return [
    {
      name: "record",
      async do({ spec }) {
        if (!machines.find(spec.id)) await machines.add(spec);
      },
      undo: ({ spec }) => machines.forget(spec.id),
    },
    {
      name: "files",
      async do(context) {
        const image = await imagesOf(parts).open(context.stored.key);
        context.found = await fetchFiles(parts, context.spec.id, image);
      },
    },
    {
      name: "commit",
      async do({ spec, stored, found }) {
        const { record } = await imagesOf(parts).open(stored.key);
        const { name, idleSuspendSeconds, cpus, memoryMb, diskMb, egress = record.egress } = spec;
        const { snapshot, words } = found ?? { words: "" };
        // The gateway says what a machine may have, not the image.
        const sizes = { cpus, memoryMb, diskMb };
        const own = { name, idleSuspendSeconds, ...sizes, ...(egress !== undefined && { egress }) };
        // Watchers must take this for newer than everything the former host told.
        const epoch = Math.max(record.epoch, machines.get(spec.id).epoch);
        const { id: _, errorMessage: __, ...travelled } = record;
        const fields = { ...travelled, ...own, epoch, errorMessage: words, stored };
        const memory = snapshot === undefined ? {} : { snapshot };
        await machines.move(spec.id, "imported", { ...fields, ...memory }, { durable: true });
      },
    },
  ];
}

/** Repeatable: first removes the files of an earlier try. */
async function fetchFiles(
  parts: OperationParts,
  id: string,
  image: ImageDescription,
): Promise<NonNullable<ImportContext["found"]>> {
  const { machines } = parts;
  const images = imagesOf(parts);
  const record = machines.get(id);
  const files = machines.files(record);
  const snapshot = snapshotOf(parts, record, snapshotName);
  const signal = machines.cutOf(id);
  await rm(snapshot.dir, { recursive: true, force: true });
  await rm(files.diskImage, { force: true });
  const why = image.memory === undefined ? (image.withoutMemory ?? "") : await whyNot(parts, image, snapshot);
  if (image.memory !== undefined && why === "") {
    const base = await parts.drivers.of(record).memoryBase?.(snapshot);
    await images.fetchMemory(image, snapshot.dir, base, signal);
    await images.fetchDisk(image, snapshotDisk(snapshot), signal);
    await syncDirectory(snapshot.dir);
    await syncDirectory(files.dir);
    return { snapshot: snapshotName, words: image.record.errorMessage };
  }
  await rm(snapshot.dir, { recursive: true, force: true });
  await images.fetchDisk(image, files.diskImage, signal);
  await syncDirectory(files.dir);
  return { words: why === "" ? image.record.errorMessage : withoutMemory(why) };
}

/** Why the memory can never be restored here; empty: it can. */
async function whyNot(
  parts: OperationParts,
  image: ImageDescription,
  snapshot: SnapshotFiles,
): Promise<string> {
  await mkdir(snapshot.dir, { mode: 0o700 });
  await imagesOf(parts).writeSmall(image, snapshot.dir);
  try {
    await parts.drivers.of(image.record).requireRestorable(snapshot, { descriptionOnly: true });
    return "";
  } catch (error) {
    if (error instanceof ImageMismatchError) return error.message;
    throw error;
  }
}

function imagesOf({ images }: OperationParts): StoredImages {
  if (images === undefined) throw new ClocheError("unimplemented", "this host is in no cluster");
  return images;
}
