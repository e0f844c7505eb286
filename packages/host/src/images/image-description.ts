/**
 * What `images/<key>/image` in storage holds: the machine of a suspended image, and which files make it up. JSON with a SHA-256,
 * written last, versioned apart from the release. It has the machine's secrets, as its memory has: who reads the bucket can
 * act as the sandbox (SECURITY.md).
 */
import { createHash } from "node:crypto";
import { ClocheError } from "@cloche/protocol";
import type { MachineRecord } from "../machines/machine-record.ts";

const VERSION = 1;
export const descriptionBytesMax = 1024 * 1024;

/** What of a record goes along: all that is not of one host or one instant. */
const TRAVELLING = [
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
  "channel",
  "agentPort",
  "blockDevice",
] as const satisfies readonly (keyof MachineRecord)[];

export type TravellingRecord = Pick<MachineRecord, (typeof TRAVELLING)[number]>;

export interface ImageDescription {
  version: typeof VERSION;
  key: string;
  storedAtMs: number;
  /** Of the packs that were written for it. */
  bytes: number;
  record: TravellingRecord;
  /** File in storage that has the disk. */
  disk: string;
  /** Files of the memory; undefined: the disk alone. */
  memory?: {
    /** Of the driver (memoryClass). */
    cpuClass: string;
    /** In storage, by these names in the snapshot's directory too. */
    files: string[];
    /** Small ones, base64. */
    small: Record<string, string>;
  };
  /** Why its memory is not here, although it was saved, in words that go on "started from its disk, without its memory: ". */
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

/** Throws ImageError for what is not a whole description of `key` of a version that is read here. */
export function decodeDescription(data: Uint8Array, key: string): ImageDescription {
  if (data.byteLength > descriptionBytesMax) throw new ImageError("its description is too long");
  const whole = Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString("utf8");
  const end = whole.indexOf("\n");
  const text = whole.slice(end + 1);
  if (end < 0 || digestOf(text) !== whole.slice(0, end))
    throw new ImageError("the checksum of its description does not match");
  const image = JSON.parse(text) as ImageDescription;
  if (image.version !== VERSION)
    throw new ImageError(`its format is version ${String(image.version)}, this release reads ${VERSION}`);
  if (image.key !== key) throw new ImageError("it is another one's");
  for (const name of [image.disk, ...(image.memory?.files ?? []), ...Object.keys(image.memory?.small ?? {})])
    if (!isFileName(name)) throw new ImageError("it names a file that cannot be one");
  return image;
}

/** In storage, and in a directory of ours. */
export const isFileName = (name: string): boolean =>
  /^[a-z0-9][a-z0-9._-]{0,63}$/.test(name) && name !== DESCRIPTION_FILE;

export const DESCRIPTION_FILE = "image";

/** The part of a record that goes along. */
export const travelling = (record: MachineRecord): TravellingRecord =>
  Object.fromEntries(
    TRAVELLING.filter((field) => record[field] !== undefined).map((field) => [field, record[field]]),
  ) as unknown as TravellingRecord;

const digestOf = (text: string): string => createHash("sha256").update(text).digest("hex");
