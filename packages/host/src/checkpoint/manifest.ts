/**
 * A checkpoint's manifest: the place of each chunk of the disk in storage. Binary, little-endian, versioned apart from the release:
 *
 *   magic "CLOCHEMF" (8) · version u16 · zero u16 · header bytes u32 · table bytes u32 · header JSON · table (zstd) · SHA-256 of all before
 *
 * The table has an entry of 48 bytes for each chunk: pack index u16 (0xffff: all zeros) · zero u16 · stored bytes u32 · offset u64 ·
 * SHA-256 of the raw chunk. Everything is checked before use: a checkpoint in storage may be damaged or hostile.
 */
import { createHash } from "node:crypto";
import { promisify } from "node:util";
import { constants, createZstdDecompress, zstdCompress } from "node:zlib";
import { parseJson } from "@cloche/base";
import { ClocheError, limits } from "@cloche/protocol";

export const manifestVersion = 1;
export const chunkBytes = 256 * 1024;
const magic = Buffer.from("CLOCHEMF");
const prefixBytes = 20;
const entryBytes = 48;
const digestBytes = 32;
const zeroPack = 0xffff;
/** 8 MiB: more than a table needs that `encodeManifest` wrote, and the most that unpacking one keeps. */
const windowLogMax = 23;

/** Limits of the values in a manifest. */
export const manifestCaps = {
  /** With 65,534 packs, more than the largest disk needs that is full of what cannot be compressed. */
  headerBytes: 4 * 1024 * 1024,
  /** Values of its JSON: three of each pack, and the services. */
  headerValues: 250_000,
  diskBytes: 2 ** 40,
  packs: zeroPack - 1,
  storedChunkBytes: 2 * chunkBytes,
  services: 10_000,
  serviceNameLength: 256,
} as const;

export interface CheckpointHeader {
  id: string;
  name: string;
  team_id: string;
  sandbox_id: string;
  created_at: string;
  /** Bytes allocated on the disk when the checkpoint was taken. */
  size_bytes: number;
  runtime: string;
  disk_bytes: number;
  disk_mb: number;
  /** Services that ran, in dependency order. */
  running_services: string[];
  /** Taken by the service itself, not by its owner. */
  automatic?: true;
}

/** A pack with chunks of this checkpoint. `bytes`: its size in storage. */
export interface PackReference {
  id: string;
  bytes: number;
}

export interface Chunk {
  /** Index into `packs`. */
  pack: number;
  offset: number;
  storedBytes: number;
  /** Of the raw chunk. */
  sha256: Buffer;
}

/** A manifest that is being written. */
export interface ManifestDraft {
  header: CheckpointHeader;
  packs: PackReference[];
  /** One entry for each chunk of the disk; undefined: all zeros. */
  chunks: (Chunk | undefined)[];
}

/** A manifest as it was read. Its table stays compressed, since a few KiB may stand for millions of chunks. */
export interface Manifest {
  header: CheckpointHeader;
  packs: PackReference[];
  /** Chunks of the disk. */
  chunkCount: number;
  /** The chunks in order, some thousands at a time; undefined: all zeros. */
  chunks(): AsyncIterable<(Chunk | undefined)[]>;
}

const compress = promisify(zstdCompress);

export class ManifestError extends ClocheError {
  constructor(what: string, cause?: unknown) {
    super("failed_precondition", `the checkpoint in storage is damaged: ${what}`, { cause });
    this.name = "ManifestError";
  }
}

export async function encodeManifest(manifest: ManifestDraft): Promise<Buffer> {
  const header = Buffer.from(JSON.stringify({ ...manifest.header, packs: manifest.packs }));
  const raw = Buffer.alloc(manifest.chunks.length * entryBytes);
  manifest.chunks.forEach((chunk, index) => {
    const at = index * entryBytes;
    if (chunk === undefined) {
      raw.writeUInt16LE(zeroPack, at);
      return;
    }
    raw.writeUInt16LE(chunk.pack, at);
    raw.writeUInt32LE(chunk.storedBytes, at + 4);
    raw.writeBigUInt64LE(BigInt(chunk.offset), at + 8);
    chunk.sha256.copy(raw, at + 16);
  });
  const table = await compress(raw);
  const prefix = Buffer.alloc(prefixBytes);
  magic.copy(prefix);
  prefix.writeUInt16LE(manifestVersion, 8);
  prefix.writeUInt32LE(header.length, 12);
  prefix.writeUInt32LE(table.length, 16);
  const body = Buffer.concat([prefix, header, table]);
  return Buffer.concat([body, createHash("sha256").update(body).digest()]);
}

/** Throws ManifestError for anything except a complete, sound manifest of this version. */
export async function decodeManifest(data: Uint8Array): Promise<Manifest> {
  const bytes = Buffer.from(data.buffer, data.byteOffset, data.byteLength);
  if (bytes.length < prefixBytes + digestBytes || !bytes.subarray(0, 8).equals(magic))
    throw new ManifestError("no manifest");
  const version = bytes.readUInt16LE(8);
  if (version !== manifestVersion) {
    throw new ManifestError(`its format is version ${version}, this service reads ${manifestVersion}`);
  }
  const headerLength = bytes.readUInt32LE(12);
  const tableLength = bytes.readUInt32LE(16);
  if (headerLength > manifestCaps.headerBytes) throw new ManifestError("its header is too long");
  if (bytes.length !== prefixBytes + headerLength + tableLength + digestBytes)
    throw new ManifestError("it is truncated");
  const body = bytes.subarray(0, -digestBytes);
  if (!createHash("sha256").update(body).digest().equals(bytes.subarray(-digestBytes))) {
    throw new ManifestError("its checksum does not match");
  }
  const { packs, ...header } = parseHeader(bytes.subarray(prefixBytes, prefixBytes + headerLength));
  const chunkCount = Math.ceil(header.disk_bytes / chunkBytes);
  const table = bytes.subarray(prefixBytes + headerLength, -digestBytes);
  for await (const piece of entriesOf(table, chunkCount))
    for (let at = 0; at < piece.length; at += entryBytes) checkEntry(piece, at, packs);
  return {
    header,
    packs,
    chunkCount,
    async *chunks() {
      for await (const piece of entriesOf(table, chunkCount)) {
        const count = piece.length / entryBytes;
        yield Array.from({ length: count }, (_, index) => readEntry(piece, index * entryBytes));
      }
    },
  };
}

/** Unpacks a table piece by piece, each a number of whole entries. Throws ManifestError unless it has `count` entries. */
async function* entriesOf(table: Buffer, count: number): AsyncGenerator<Buffer> {
  const unpacking = createZstdDecompress({ params: { [constants.ZSTD_d_windowLogMax]: windowLogMax } });
  unpacking.end(table);
  let rest: Buffer = Buffer.alloc(0);
  let left = count * entryBytes;
  try {
    for await (const unpacked of unpacking as AsyncIterable<Buffer>) {
      left -= unpacked.length;
      if (left < 0) break;
      const piece = rest.length === 0 ? unpacked : Buffer.concat([rest, unpacked]);
      const whole = piece.length - (piece.length % entryBytes);
      rest = piece.subarray(whole);
      if (whole > 0) yield piece.subarray(0, whole);
    }
  } catch (error) {
    throw new ManifestError("its table does not unpack", error);
  }
  if (left !== 0) throw new ManifestError("its table has the wrong length");
}

function checkEntry(table: Buffer, at: number, packs: readonly PackReference[]): void {
  const pack = table.readUInt16LE(at);
  if (pack === zeroPack) return;
  const storedBytes = table.readUInt32LE(at + 4);
  const offset = Number(table.readBigUInt64LE(at + 8));
  const reference = packs[pack];
  if (reference === undefined) throw new ManifestError("a chunk names a pack that it does not list");
  if (
    storedBytes === 0 ||
    storedBytes > manifestCaps.storedChunkBytes ||
    offset + storedBytes > reference.bytes
  ) {
    throw new ManifestError("a chunk lies outside its pack");
  }
}

/** An entry that was checked. */
function readEntry(table: Buffer, at: number): Chunk | undefined {
  const pack = table.readUInt16LE(at);
  if (pack === zeroPack) return undefined;
  return {
    pack,
    storedBytes: table.readUInt32LE(at + 4),
    offset: Number(table.readBigUInt64LE(at + 8)),
    sha256: table.subarray(at + 16, at + entryBytes),
  };
}

function parseHeader(bytes: Buffer): CheckpointHeader & { packs: PackReference[] } {
  let header: Record<string, unknown>;
  try {
    header = (parseJson(bytes, manifestCaps.headerValues) ?? {}) as Record<string, unknown>;
  } catch (error) {
    throw new ManifestError("its header is no JSON", error);
  }
  for (const field of ["id", "name", "team_id", "sandbox_id", "created_at", "runtime"]) {
    if (typeof header[field] !== "string") throw new ManifestError(`its header has no ${field}`);
  }
  if ((header["name"] as string).length > 2 * limits.checkpointNameLength)
    throw new ManifestError("its name is too long");
  for (const field of ["size_bytes", "disk_bytes", "disk_mb"]) {
    const value = header[field];
    if (!Number.isSafeInteger(value) || (value as number) < 0)
      throw new ManifestError(`its header has no ${field}`);
  }
  if ((header["disk_bytes"] as number) > manifestCaps.diskBytes)
    throw new ManifestError("its disk is too large");
  const { packs, running_services: services } = header;
  const { services: most, serviceNameLength } = manifestCaps;
  const isName = (name: unknown): boolean => typeof name === "string" && name.length <= serviceNameLength;
  if (!Array.isArray(services) || services.length > most || !services.every(isName)) {
    throw new ManifestError("its header has no running_services");
  }
  if (!Array.isArray(packs) || packs.length > manifestCaps.packs || !packs.every(isPackReference)) {
    throw new ManifestError("its header has no packs");
  }
  return header as unknown as CheckpointHeader & { packs: PackReference[] };
}

const isPackReference = (value: unknown): value is PackReference => {
  const { id, bytes } = (value ?? {}) as Record<string, unknown>;
  return (
    typeof id === "string" &&
    /^pack-[a-z0-9]{20}$/.test(id) &&
    Number.isSafeInteger(bytes) &&
    (bytes as number) >= 0
  );
};
