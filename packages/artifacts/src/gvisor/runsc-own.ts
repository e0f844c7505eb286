/**
 * CLOCHE_RUNSC: the operator's own runsc, a binary or the folder of an official release. Checked before it is used, so that a wrong
 * one gives a clear message instead of a first sandbox that fails.
 */
import { constants } from "node:fs";
import { access, open, stat } from "node:fs/promises";
import { dirname, join } from "node:path";
import { run } from "@cloche/base/run";
import { dayText, oldestRelease, parseRunscVersion, type RunscVersion } from "./runsc-version.ts";

/** From this release on, runsc needs the programs of its release in gvisor-bin/ beside it. */
const needsSidecarsFrom = "20261001";
const sidecarNames = "gvisor-bin";

/** e_machine of the ELF header. */
const machines: Readonly<Record<number, NodeJS.Architecture>> = {
  3: "ia32",
  40: "arm",
  62: "x64",
  183: "arm64",
  243: "riscv64",
};
const elfHeaderBytes = 20;

export interface OwnRunsc extends RunscVersion {
  readonly path: string;
}

export async function ownRunsc(setting: string): Promise<OwnRunsc> {
  const path = await programOf(setting);
  await checkExecutable(path);
  const version = await versionOf(path);
  await checkSidecars(path, version);
  return { path, ...version };
}

/** The binary itself, or runsc in the folder. */
async function programOf(setting: string): Promise<string> {
  const info = await stat(setting).catch(missing);
  if (info === undefined) throw new Error(`CLOCHE_RUNSC is ${setting}, which does not exist`);
  if (!info.isDirectory()) return setting;
  const path = join(setting, "runsc");
  if ((await stat(path).catch(missing)) === undefined)
    throw new Error(
      `CLOCHE_RUNSC is ${setting}, a folder without runsc in it; a release unpacked there has runsc and ${sidecarNames}/`,
    );
  return path;
}

async function checkExecutable(path: string): Promise<void> {
  const info = await stat(path);
  if (!info.isFile()) throw new Error(`${path} (CLOCHE_RUNSC) is not a file`);
  const header = await headerOf(path);
  if (header.length < elfHeaderBytes || header.toString("latin1", 0, 4) !== "\x7fELF")
    throw new Error(`${path} (CLOCHE_RUNSC) is no Linux program (ELF); name the runsc binary itself`);
  const machine = header.readUInt16LE(18);
  if (machines[machine] !== process.arch)
    throw new Error(
      `${path} (CLOCHE_RUNSC) is built for ${machines[machine] ?? `machine type ${machine}`}; this machine is ${process.arch}`,
    );
  await access(path, constants.X_OK).catch(() => {
    throw new Error(`${path} (CLOCHE_RUNSC) is not executable; run: chmod +x ${path}`);
  });
}

async function headerOf(path: string): Promise<Buffer> {
  const file = await open(path);
  try {
    const { buffer, bytesRead } = await file.read(Buffer.alloc(elfHeaderBytes), 0, elfHeaderBytes, 0);
    return buffer.subarray(0, bytesRead);
  } finally {
    await file.close();
  }
}

async function versionOf(path: string): Promise<RunscVersion> {
  const { stdout } = await run([path, "--version"]).catch((error: Error) => {
    throw new Error(`${path} (CLOCHE_RUNSC) does not answer --version: ${error.message}`);
  });
  const version = parseRunscVersion(stdout);
  if (version === undefined)
    throw new Error(
      `${path} (CLOCHE_RUNSC) is not runsc: --version answers ${JSON.stringify(stdout.slice(0, 100))}`,
    );
  if (version.released === undefined)
    throw new Error(
      `${path} (CLOCHE_RUNSC) calls itself ${version.version}, which names no release; memory images of two such builds would count as the same: build it with its version set, for example 20260905.0`,
    );
  if (dayText(version.released) < oldestRelease)
    throw new Error(
      `${path} (CLOCHE_RUNSC) is gVisor ${version.version}; it must be ${oldestRelease} or newer: unset CLOCHE_RUNSC to have a fit one built, or unpack a newer release`,
    );
  return version;
}

async function checkSidecars(path: string, { version, released }: RunscVersion): Promise<void> {
  if (released === undefined || dayText(released) < needsSidecarsFrom) return;
  const sidecars = join(dirname(path), sidecarNames);
  if ((await stat(sidecars).catch(missing))?.isDirectory() !== true)
    throw new Error(
      `${path} (CLOCHE_RUNSC) is gVisor ${version}, which needs the programs of its release in ${sidecars}/: unpack the whole release and name its folder`,
    );
}

function missing(error: NodeJS.ErrnoException): undefined {
  if (error.code === "ENOENT" || error.code === "ENOTDIR") return undefined;
  throw error;
}
