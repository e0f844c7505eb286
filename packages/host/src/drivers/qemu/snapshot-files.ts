/**
 * The directory of a snapshot or template on the pool, complete in itself:
 *
 *   manifest.json   written last: without it there is no snapshot
 *   memory          the guest's memory, sparse; never changed again, hard-linked into every machine started from it
 *   devices         QEMU's device state
 *   system.ext4     the system image it runs on (a hard link), so that it does not depend on a newer one
 *   disk.ext4       the user's disk at the same instant (not in a template)
 *
 * Versioned apart from the release. A snapshot that does not fit or is damaged is refused with a public error before any start.
 */
import { createHash } from "node:crypto";
import { readFile, stat } from "node:fs/promises";
import { join } from "node:path";
import { syncDirectory, writeDurably } from "@cloche/base";
import { ImageMismatchError, snapshotDisk } from "../driver.ts";
import { isPort, requirePlainFiles } from "../plain-files.ts";
import type { VmShape } from "./command-line.ts";
import { hardwareKey, type VmPlatform } from "./platform.ts";

const magicText = "cloche-vm-snapshot";
const currentVersion = 1;
const maxManifestBytes = 65_536;
const maxDevicesBytes = 64 * 1024 * 1024;
const bytesPerMib = 1024 * 1024;

export interface SnapshotManifest {
  readonly magic: string;
  readonly version: number;
  /** Must equal the host's own (platform.ts). */
  readonly hardwareKey: string;
  readonly qemuVersion: string;
  readonly accelerator: string;
  /** Only for people who inspect the directory. */
  readonly bootedFrom: { readonly kernel: string; readonly firstRoot: string; readonly systemImage: string };
  readonly shape: VmShape;
  readonly devicesSha256: string;
  readonly diskBytes: number;
  readonly createdAt: string;
  /** Only in a template: the secret that its agent accepts for the first Assign. */
  readonly bootstrapSecret?: string;
  /** Port of its agent. */
  readonly agentPort: number;
}

export const snapshotPaths = (dir: string) => ({
  manifest: join(dir, "manifest.json"),
  memory: join(dir, "memory"),
  devices: join(dir, "devices"),
  system: join(dir, "system.ext4"),
  disk: snapshotDisk({ dir }),
});

/** Writes the manifest. All other files must be complete and synced. From now on the snapshot exists. */
export async function sealSnapshot(
  dir: string,
  platform: VmPlatform,
  facts: Pick<SnapshotManifest, "shape" | "bootedFrom" | "diskBytes" | "createdAt" | "agentPort"> & {
    bootstrapSecret?: string;
  },
): Promise<void> {
  const manifest: SnapshotManifest = {
    magic: magicText,
    version: currentVersion,
    hardwareKey: hardwareKey(platform, facts.shape),
    qemuVersion: platform.qemuVersion,
    accelerator: platform.accelerator,
    devicesSha256: await sha256Of(snapshotPaths(dir).devices),
    ...facts,
  };
  await syncDirectory(dir);
  await writeDurably(snapshotPaths(dir).manifest, JSON.stringify(manifest, null, 2));
}

/** The manifest of a snapshot that fits this host's hardware; throws ImageMismatchError for any other. Needs no other file. */
export async function fittingManifest(dir: string, platform: VmPlatform): Promise<SnapshotManifest> {
  const manifest = await readManifest(dir);
  if (manifest.version !== currentVersion)
    throw new ImageMismatchError(
      `the memory snapshot has format ${manifest.version}, this release reads ${currentVersion}`,
    );
  if (manifest.hardwareKey !== hardwareKey(platform, manifest.shape)) throw doesNotFit(manifest, platform);
  return manifest;
}

/** Checks all that can be checked without a start; throws ImageMismatchError if the snapshot can never be restored here. */
export async function openSnapshot(dir: string, platform: VmPlatform): Promise<SnapshotManifest> {
  const manifest = await fittingManifest(dir, platform);
  const paths = snapshotPaths(dir);
  const memory = await stat(paths.memory).catch(() => undefined);
  if (memory?.size !== manifest.shape.memoryMb * bytesPerMib) throw damaged("its memory is incomplete");
  const devices = await stat(paths.devices).catch(() => undefined);
  if (
    !devices ||
    devices.size > maxDevicesBytes ||
    (await sha256Of(paths.devices)) !== manifest.devicesSha256
  )
    throw damaged("its device state is not what was written");
  if (!(await stat(paths.system).catch(() => undefined))) throw damaged("its system image is missing");
  return manifest;
}

async function readManifest(dir: string): Promise<SnapshotManifest> {
  await requirePlainFiles(dir);
  const { manifest: path } = snapshotPaths(dir);
  const size = (await stat(path).catch(() => undefined))?.size;
  if (size === undefined) throw damaged("it was never finished");
  if (size > maxManifestBytes) throw damaged("its description is too long");
  let parsed: SnapshotManifest | null;
  try {
    parsed = JSON.parse(await readFile(path, "utf8")) as SnapshotManifest | null;
  } catch (error) {
    throw damaged("its description cannot be read", error);
  }
  // It may come from storage; its values become part of command lines and rules of the host.
  const { vcpus, memoryMb } = parsed?.shape ?? {};
  if (parsed?.magic !== magicText || !isCount(vcpus) || !isCount(memoryMb) || !isPort(parsed.agentPort))
    throw damaged("its description is not one of ours");
  return parsed;
}

const isCount = (value: unknown): boolean => Number.isSafeInteger(value) && (value as number) > 0;

function doesNotFit(manifest: SnapshotManifest, platform: VmPlatform): ImageMismatchError {
  const { qemuVersion, accelerator } = manifest;
  const same = qemuVersion === platform.qemuVersion && accelerator === platform.accelerator;
  const why = same
    ? "another virtual hardware of this service"
    : `QEMU ${qemuVersion} with ${accelerator}, and this host has QEMU ${platform.qemuVersion} with ${platform.accelerator}`;
  return new ImageMismatchError(`the memory snapshot was made by ${why}`);
}

function damaged(why: string, cause?: unknown): ImageMismatchError {
  return new ImageMismatchError(`the memory snapshot is damaged (${why})`, cause);
}

async function sha256Of(path: string): Promise<string> {
  return createHash("sha256")
    .update(await readFile(path))
    .digest("hex");
}
