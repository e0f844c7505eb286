/**
 * Decides whether this host can restore a memory image, from the file `made-with` beside the image. An image fits the version of
 * the sentry that wrote it, the class of the CPU it ran on, and the content of the agent's root whose files it names. The path
 * of that root does not matter: gVisor opens the files below the root it is given.
 */
import { existsSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { CommandError } from "@cloche/base/run";
import { createDurably, readJsonFile } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import { ImageMismatchError } from "../driver.ts";
import { isPort, requirePlainFiles } from "../plain-files.ts";
import type { MadeWith } from "./ready/template.ts";
import type { Unit } from "./unit.ts";

const file = "made-with";
/** As packages/artifacts names it. */
const agentRootName = /^agent-root-[0-9a-f]{16}$/;

/** Messages of runsc and its sentry for an image that cannot be loaded: it was refused, or the sentry ended. */
const notLoaded =
  /failed to load kernel|gvisor\/pkg\/state\.|containerManager\.Restore\\?" failed|restoring container "[^"]*": (?:I\/O error|json unmarshal error)/;
/** Failures of the host, not of the image: another try may succeed. */
const passing = /no space left on device|cannot allocate memory|too many open files|temporarily unavailable/i;

/** Writes the note into an empty directory. `durable`: safe from a power cut on return. */
export async function noteMadeWith(dir: string, madeWith: MadeWith, durable: boolean): Promise<void> {
  const write = durable ? createDurably : writeFile;
  await write(join(dir, file), JSON.stringify(madeWith));
}

/**
 * Answers what the image was made with, with the path of the agent's root on this host. Throws ImageMismatchError, with a public
 * reason, for an image that this host can never restore.
 */
export async function requireRestorable(dir: string, present: MadeWith): Promise<MadeWith> {
  await requirePlainFiles(dir);
  const madeWith = await readNote(dir);
  if (!isOfOneKind(madeWith, present)) throw new ImageMismatchError(differenceOf(madeWith, present));
  // Try this host's own root of that content first: the noted path is of the host that wrote the image.
  const roots = [join(dirname(present.agentRootDir), basename(madeWith.agentRootDir)), madeWith.agentRootDir];
  const agentRootDir = roots.find((path) => existsSync(path));
  if (agentRootDir === undefined)
    throw new ImageMismatchError(
      "the agent that the memory was saved with is no longer in this host's cache",
    );
  return { ...madeWith, agentRootDir };
}

/** Hosts of equal class restore each other's images. */
export const memoryClassOf = ({ cpuClass, runscVersion }: MadeWith): string =>
  `${cpuClass}.gvisor-${runscVersion}`;

/** The class of an image on disk. */
export const memoryClassOfImage = async (dir: string): Promise<string> => memoryClassOf(await readNote(dir));

const isOfOneKind = (madeWith: MadeWith, present: MadeWith): boolean =>
  madeWith.platform === present.platform || memoryClassOf(madeWith) === memoryClassOf(present);

async function readNote(dir: string): Promise<MadeWith> {
  const known = await readJsonFile(join(dir, file)).catch((error: unknown) => {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  });
  const { agentRootDir, agentPort, platform } = (known ?? {}) as Partial<MadeWith>;
  // The image may come from storage. gVisor shows a machine all of the directory that becomes its agent's root.
  const isAgentRoot = typeof agentRootDir === "string" && agentRootName.test(basename(agentRootDir));
  if (!isAgentRoot || typeof platform !== "string" || !isPort(agentPort))
    throw new ImageMismatchError("the memory image is damaged: what it was made with cannot be read");
  return known as MadeWith;
}

function differenceOf({ runscVersion }: MadeWith, present: MadeWith): string {
  if (runscVersion === present.runscVersion)
    return "the memory was saved on another kind of processor than this host has";
  return `the memory was saved by gVisor ${runscVersion}, and gVisor ${present.runscVersion} of this host cannot restore it`;
}

/** Refuses to clone a machine whose sentry has a version that cannot be restored now. Call it before the machine is paused. */
export function requireForkable(source: MadeWith, present: MadeWith): void {
  if (isOfOneKind(source, present)) return;
  throw new ClocheError(
    "failed_precondition",
    `the source has run since before an upgrade, and its memory cannot be cloned: it is run by gVisor ${source.runscVersion}, which gVisor ${present.runscVersion} of this host cannot restore; ` +
      "fork from one of its checkpoints (checkpoint_id), or suspend and resume it first, which starts it from its disk with its services and without its memory",
  );
}

/** Maps a failed restore: ImageMismatchError for a damaged image; the error itself if the host is at fault or the sentry was killed. */
export async function restoreError(unit: Pick<Unit, "wasKilled">, error: unknown): Promise<unknown> {
  if (!(error instanceof CommandError)) return error;
  if (!notLoaded.test(error.stderr) || passing.test(error.stderr)) return error;
  if (await unit.wasKilled()) return error;
  return new ImageMismatchError("the memory image is damaged: gVisor could not load it", error);
}
