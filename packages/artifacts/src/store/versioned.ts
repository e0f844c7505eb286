/**
 * Artifacts made of packages that others publish. Their key includes the packages' versions, which only a build knows. So each has a note
 * beside it, `<kind>-<key>.made-from.json`, and the newest artifact of the present recipe is used:
 *
 *   a start          uses it, without a network; builds the first
 *   cloche update    builds another if versions are newer (update.ts); the next start uses that one
 */
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { type Progress, readJsonFile, rfc3339, writeDurably } from "@cloche/base";
import type { Versions } from "../apt/private-apt.ts";
import {
  type Artifact,
  type ArtifactRequest,
  artifactKey,
  buildBeside,
  isPresent,
  use,
  withKindLock,
} from "./store.ts";

export interface VersionedRequest extends Omit<ArtifactRequest, "build"> {
  /** Fills the empty directory; answers the packages used. */
  readonly build: (dir: string) => Promise<Versions>;
}

export interface VersionedArtifact extends Artifact {
  readonly madeFrom: MadeFrom;
}

export interface MadeFrom {
  readonly versions: Versions;
  /** Unix milliseconds. */
  readonly madeAtMs: number;
}

interface Note {
  format: 1;
  recipe: string;
  made_at: string;
  versions: Versions;
}

const noteSuffix = ".made-from.json";
const noteFormat = 1;
const dayMs = 24 * 3_600_000;
const noticeAfterDays = 7;

/** The artifact in use, built if there is none. Concurrent callers, in any process, build it once. */
export async function obtainVersioned(
  cache: string,
  request: VersionedRequest,
  progress: Progress,
): Promise<VersionedArtifact> {
  const found = await currentVersioned(cache, request);
  if (found !== undefined) return taken(found);
  return withKindLock(cache, request.kind, progress, async () =>
    taken((await currentVersioned(cache, request)) ?? (await build(cache, request))),
  );
}

/** Builds an artifact with the present packages, which the next start uses. */
export function rebuildVersioned(
  cache: string,
  request: VersionedRequest,
  progress: Progress,
): Promise<VersionedArtifact> {
  return withKindLock(cache, request.kind, progress, async () => taken(await build(cache, request)));
}

/** The artifact that a start would use; undefined: it would build one. */
export async function currentVersioned(
  cache: string,
  { kind, inputs }: Pick<VersionedRequest, "kind" | "inputs">,
): Promise<VersionedArtifact | undefined> {
  const recipe = artifactKey(kind, inputs);
  let newest: VersionedArtifact | undefined;
  for (const name of await readdir(cache).catch(() => [])) {
    if (!name.startsWith(`${kind}-`) || !name.endsWith(noteSuffix)) continue;
    const key = name.slice(kind.length + 1, -noteSuffix.length);
    const artifact = await noted(cache, kind, key, recipe);
    if (artifact && artifact.madeFrom.madeAtMs >= (newest?.madeFrom.madeAtMs ?? 0)) newest = artifact;
  }
  return newest;
}

/** A line about the artifact's age, for a start; undefined if it is new. */
export function ageText({ madeFrom }: VersionedArtifact, nowMs: number): string | undefined {
  const days = Math.floor((nowMs - madeFrom.madeAtMs) / dayMs);
  if (days < noticeAfterDays) return undefined;
  return `made ${days} days ago: npx cloche update looks for newer packages`;
}

/** Path of an artifact's note, which is removed together with it. */
export const notePath = (artifact: string): string => `${artifact}${noteSuffix}`;

async function noted(
  cache: string,
  kind: string,
  key: string,
  recipe: string,
): Promise<VersionedArtifact | undefined> {
  const path = join(cache, `${kind}-${key}`);
  const note = (await readJsonFile(notePath(path)).catch(() => undefined)) as Partial<Note> | undefined;
  if (note?.format !== noteFormat || note.recipe !== recipe || !(await isPresent(path))) return undefined;
  const madeFrom = { versions: note.versions ?? {}, madeAtMs: Date.parse(note.made_at ?? "") || 0 };
  return { key, path, madeFrom };
}

async function build(
  cache: string,
  { kind, inputs, build: fill }: VersionedRequest,
): Promise<VersionedArtifact> {
  let versions: Versions = {};
  const madeAtMs = Date.now();
  const artifact = await buildBeside(cache, kind, async (dir) => {
    versions = await fill(dir);
    const key = artifactKey(kind, { ...inputs, versions: Object.entries(versions).toSorted() });
    const note: Note = {
      format: noteFormat,
      recipe: artifactKey(kind, inputs),
      made_at: rfc3339(madeAtMs),
      versions,
    };
    await writeDurably(notePath(join(cache, `${kind}-${key}`)), `${JSON.stringify(note, null, 2)}\n`, 0o644);
    return key;
  });
  return { ...artifact, madeFrom: { versions, madeAtMs } };
}

async function taken(artifact: VersionedArtifact): Promise<VersionedArtifact> {
  await use(artifact.path);
  return artifact;
}
