// What a memory image was made with, noted beside it in the file `made-with`, and whether this host can restore it. An image
// belongs to the version of the sentry that wrote it, to the class of the CPU it ran on, and to the content of the agent's root
// whose files it names: where that root lies on a host does not matter, gVisor opens its files below whatever root it is given.
import { existsSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { createDurably, readJsonFile } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import { CommandError } from "../../sys/run.ts";
import { ImageMismatchError } from "../driver.ts";
import type { MadeWith } from "./pool/template.ts";
import type { Unit } from "./unit.ts";

const FILE = "made-with";

/** How runsc and its sentry tell that they cannot load an image: refused, or the sentry ended over it. */
const NOT_LOADED = /failed to load kernel|gvisor\/pkg\/state\.|containerManager\.Restore\\?" failed/;
/** Of the host, not of the image: another try may do. */
const PASSING = /no space left on device|cannot allocate memory|too many open files|temporarily unavailable/i;

/** In an empty directory. `durable`: safe from a power cut when it answers. */
export async function noteMadeWith(dir: string, madeWith: MadeWith, durable: boolean): Promise<void> {
  const write = durable ? createDurably : writeFile;
  await write(join(dir, FILE), JSON.stringify(madeWith));
}

/**
 * What it was made with, with the agent's root as it lies on this host. Throws ImageMismatchError, with the reason in public words,
 * for an image that this host can never restore.
 */
export async function requireRestorable(dir: string, present: MadeWith): Promise<MadeWith> {
  const madeWith = await readNote(dir);
  if (!isOfOneKind(madeWith, present)) throw new ImageMismatchError(differenceOf(madeWith, present));
  // The root of that content among this host's own comes first: the path is that of the host that wrote the image.
  const roots = [join(dirname(present.agentRootDir), basename(madeWith.agentRootDir)), madeWith.agentRootDir];
  const agentRootDir = roots.find((path) => existsSync(path));
  if (agentRootDir === undefined)
    throw new ImageMismatchError(
      "the agent that the memory was saved with is no longer in this host's cache",
    );
  return { ...madeWith, agentRootDir };
}

/** Whoever has these restores what others of one kind saved. Undefined: no other host can be told apart from those that cannot. */
export function memoryClassOf({ cpuClass, runscVersion }: MadeWith): string | undefined {
  return cpuClass === undefined || runscVersion === undefined
    ? undefined
    : `${cpuClass}.gvisor-${runscVersion}`;
}

/** Of an image on disk. */
export const memoryClassOfImage = async (dir: string): Promise<string | undefined> =>
  memoryClassOf(await readNote(dir));

function isOfOneKind(madeWith: MadeWith, present: MadeWith): boolean {
  if (madeWith.platform === present.platform) return true;
  const memoryClass = memoryClassOf(madeWith);
  return memoryClass !== undefined && memoryClass === memoryClassOf(present);
}

async function readNote(dir: string): Promise<MadeWith> {
  const known = await readJsonFile(join(dir, FILE)).catch((error: unknown) => {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  });
  const { agentRootDir, platform } = (known ?? {}) as Partial<MadeWith>;
  if (typeof agentRootDir !== "string" || typeof platform !== "string")
    throw new ImageMismatchError("the memory image is damaged: what it was made with cannot be read");
  return known as MadeWith;
}

function differenceOf({ runscVersion }: MadeWith, present: MadeWith): string {
  if (runscVersion === present.runscVersion)
    return "the memory was saved on another kind of processor than this host has";
  return `the memory was saved by ${sentryText(runscVersion)}, and gVisor ${present.runscVersion} of this host cannot restore it`;
}

const sentryText = (runscVersion: string | undefined): string =>
  runscVersion === undefined ? "the gVisor of an earlier release of Cloche" : `gVisor ${runscVersion}`;

/** A clone of a machine whose sentry is of another version than those that restore now: refused before it is paused. */
export function requireForkable(source: MadeWith, present: MadeWith): void {
  if (isOfOneKind(source, present)) return;
  throw new ClocheError(
    "failed_precondition",
    `the source has run since before an upgrade, and its memory cannot be cloned: it is run by ${sentryText(source.runscVersion)}, which gVisor ${present.runscVersion} of this host cannot restore; ` +
      "fork from one of its checkpoints (checkpoint_id), or suspend and resume it first, which starts it from its disk with its services and without its memory",
  );
}

/** What an image that was not restored is to the caller: damaged for good, unless the host or somebody else ended its sentry. */
export async function restoreError(unit: Pick<Unit, "wasKilled">, error: unknown): Promise<unknown> {
  if (!(error instanceof CommandError)) return error;
  if (!NOT_LOADED.test(error.stderr) || PASSING.test(error.stderr)) return error;
  if (await unit.wasKilled()) return error;
  return new ImageMismatchError("the memory image is damaged: gVisor could not load it", error);
}
