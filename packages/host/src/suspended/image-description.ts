/**
 * Content of `images/<key>/image` in storage: the machine of a suspended image and the list of its files. JSON with a SHA-256,
 * written last, versioned apart from the release. Like the memory, it has the machine's secrets: a reader of the bucket can act
 * as the sandbox (SECURITY.md).
 */
import { createHash } from "node:crypto";
import { ClocheError } from "@cloche/protocol";
import type { MachineRecord } from "../machines/machine-record.ts";

const currentVersion = 1;
export const descriptionBytesMax = 1024 * 1024;

/** Fields of a record that move to another host: all that do not belong to one host or one instant. */
const travellingFields = [
  "id",
  "teamId",
  "name",
  "runtime",
  "template",
  "cpus",
  "memoryMb",
  "diskMb",
  "env",
  "checkpointId",
  "idleSuspendSeconds",
  "egress",
  "epoch",
  "errorMessage",
  "controlSecret",
  "nextControlSecret",
  "snapshotSecret",
  "agentPort",
  "blockDevice",
] as const satisfies readonly (keyof MachineRecord)[];

export type TravellingRecord = Pick<MachineRecord, (typeof travellingFields)[number]>;

export interface ImageDescription {
  version: typeof currentVersion;
  key: string;
  storedAtMs: number;
  /** Size of the packs written for this image. */
  bytes: number;
  record: TravellingRecord;
  /** Name of the disk's file in storage. */
  disk: string;
  /** Files of the memory; undefined: the disk alone. */
  memory?: {
    /** The driver's memoryClass. */
    cpuClass: string;
    /** Files in storage; they have the same names in the snapshot's directory. */
    files: string[];
    /** Small files, base64 by name. */
    small: Record<string, string>;
  };
  /** Why a saved memory is not stored, as public words that follow "started from its disk, without its memory: ". */
  withoutMemory?: string;
}

export class ImageError extends ClocheError {
  constructor(what: string, cause?: unknown) {
    super("failed_precondition", `the suspended image in storage is damaged: ${what}`, { cause });
  }
}

export function encodeDescription(image: ImageDescription): Buffer {
  const text = JSON.stringify(image);
  return Buffer.from(`${digestOf(text)}\n${text}`);
}

/** Throws ImageError for anything except a complete description of `key` in this version. */
export function decodeDescription(data: Uint8Array, key: string): ImageDescription {
  if (data.byteLength > descriptionBytesMax) throw new ImageError("its description is too long");
  const whole = Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString("utf8");
  const end = whole.indexOf("\n");
  const text = whole.slice(end + 1);
  if (end < 0 || digestOf(text) !== whole.slice(0, end))
    throw new ImageError("the checksum of its description does not match");
  const image = JSON.parse(text) as ImageDescription;
  if (image.version !== currentVersion)
    throw new ImageError(
      `its format is version ${String(image.version)}, this release reads ${currentVersion}`,
    );
  if (image.key !== key) throw new ImageError("it is another one's");
  for (const name of [image.disk, ...(image.memory?.files ?? []), ...Object.keys(image.memory?.small ?? {})])
    if (!isFileName(name)) throw new ImageError("it names a file that cannot be one");
  // Other fields would name files of this host.
  return { ...image, record: travelling(image.record) };
}

/** Whether the name is valid in storage and in our directories. */
export const isFileName = (name: string): boolean =>
  /^[a-z0-9][a-z0-9._-]{0,63}$/.test(name) && name !== descriptionFile;

export const descriptionFile = "image";

/** The fields of a record that move to another host. */
export const travelling = (record: TravellingRecord): TravellingRecord =>
  Object.fromEntries(
    travellingFields.filter((field) => record[field] !== undefined).map((field) => [field, record[field]]),
  ) as unknown as TravellingRecord;

const digestOf = (text: string): string => createHash("sha256").update(text).digest("hex");
