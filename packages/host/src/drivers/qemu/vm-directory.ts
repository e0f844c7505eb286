/**
 * Fills the directory that a machine's QEMU sees as /vm (names in command-line.ts). A snapshot's memory and system image are
 * hard-linked, so that all machines started from it share them.
 */
import { chmod, chown, copyFile, mkdir, open, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { ClocheError } from "@cloche/protocol";
import type { MachineFiles } from "../driver.ts";
import { vmFiles } from "./command-line.ts";
import type { VmPlatform } from "./platform.ts";
import { hardLink } from "./reflink.ts";
import { snapshotPaths } from "./snapshot-files.ts";
import { removeVmFiles, vmDirectory, type VmRecord } from "./vm-record.ts";

const bytesPerMib = 1024 * 1024;
const ext4MagicAt = 1_024 + 56;
const ext4Magic = 0xef53;

/**
 * Refuses an image without the magic number of ext4 in its superblock. Checks nothing else, because the host does not read data
 * that a guest wrote.
 */
export async function checkDiskImage(image: string): Promise<void> {
  const handle = await open(image, "r");
  try {
    const { buffer, bytesRead } = await handle.read(Buffer.alloc(2), 0, 2, ext4MagicAt);
    if (bytesRead === 2 && buffer.readUInt16LE() === ext4Magic) return;
  } finally {
    await handle.close();
  }
  throw new ClocheError("failed_precondition", "the disk image is damaged: it holds no ext4 file system");
}

/** QEMU may write to its disk, `devices` and a template's `memory`, read the rest, and create nothing. */
export async function fillVmDirectory(
  platform: VmPlatform,
  files: MachineFiles,
  record: VmRecord,
  start: { readonly snapshotDir?: string; readonly bootConfig?: object },
): Promise<void> {
  const directory = vmDirectory(files.dir);
  await removeVmFiles(files.dir);
  await mkdir(directory, { recursive: true, mode: 0o755 });
  const at = (name: string): string => join(directory, name);
  await giveDisk(files.diskImage, at(vmFiles.disk), record.uid);
  await writeFile(at(vmFiles.boot), JSON.stringify(start.bootConfig ?? {}), { mode: 0o600 });
  await chown(at(vmFiles.boot), record.uid, record.uid);
  await writeFile(at(vmFiles.devices), "", { mode: 0o600 });
  await chown(at(vmFiles.devices), record.uid, record.uid);
  if (start.snapshotDir !== undefined) {
    const snapshot = snapshotPaths(start.snapshotDir);
    // From storage they come readable by root alone.
    for (const path of [snapshot.memory, snapshot.system]) await chmod(path, 0o444);
    await hardLink(snapshot.memory, at(vmFiles.baseMemory));
    await hardLink(snapshot.system, at(vmFiles.system));
    return;
  }
  const { kernel, firstRoot, systemImage } = platform;
  await copyFile(kernel.kernel, at(vmFiles.kernel));
  await copyFile(firstRoot.path, at(vmFiles.firstRoot));
  await copyFile(systemImage.path, at(vmFiles.system));
  for (const name of [vmFiles.kernel, vmFiles.firstRoot, vmFiles.system]) await chmod(at(name), 0o444);
  await writeFile(at(vmFiles.memory), "", { mode: 0o600 });
  await truncate(at(vmFiles.memory), record.shape.memoryMb * bytesPerMib);
  await chown(at(vmFiles.memory), record.uid, record.uid);
}

/** Hard-links the image into the machine's directory, owned by its QEMU. */
export async function giveDisk(image: string, name: string, uid: number): Promise<void> {
  await chown(image, uid, uid);
  await chmod(image, 0o600);
  await hardLink(image, name);
}
