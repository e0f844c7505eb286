/**
 * Content-addressed artifacts under CLOCHE_CACHE: `<kind>-<key>/`, where the key is a hash of all inputs.
 * Owns that directory. Several services and test homes share it: a per-kind file lock lets one build while others wait.
 *
 *   missing ──build in .tmp-<kind>-…──▶ rename ──▶ present (never changed again)
 *
 * Finished artifacts survive a crash. A half-built one is in a .tmp- directory, which the next build removes.
 */
import { createHash } from "node:crypto";
import { mkdir, readdir, rename, rm, stat, utimes } from "node:fs/promises";
import { basename, join } from "node:path";
import type { Progress } from "@cloche/base";
import { withFileLock } from "@cloche/base/file-lock";
import { run } from "@cloche/base/run";

const keyChars = 16;
const freshenEveryMs = 24 * 3_600_000;

/** Paths of the artifacts that this process has obtained and needs while it runs. */
const obtained = new Set<string>();

export interface ArtifactRequest {
  /** `a-z-`: names the directory and the lock. */
  readonly kind: string;
  /** Everything that decides the content. */
  readonly inputs: Readonly<Record<string, unknown>>;
  /** Fills the empty directory `dir`. Must not leave mounts or processes behind. */
  readonly build: (dir: string) => Promise<void>;
}

export interface Artifact {
  readonly key: string;
  /** The finished directory. Read-only by convention. */
  readonly path: string;
}

/** Key order does not matter; values must be JSON. */
export function artifactKey(kind: string, inputs: Readonly<Record<string, unknown>>): string {
  const sorted = Object.fromEntries(Object.entries(inputs).sort(([a], [b]) => (a < b ? -1 : 1)));
  return createHash("sha256")
    .update(JSON.stringify([kind, sorted]))
    .digest("hex")
    .slice(0, keyChars);
}

/** The artifact of these inputs, built if missing. Concurrent callers, in any process, build it once. */
export async function obtainArtifact(
  cache: string,
  request: ArtifactRequest,
  progress: Progress,
): Promise<Artifact> {
  const key = artifactKey(request.kind, request.inputs);
  const path = join(cache, `${request.kind}-${key}`);
  await use(path);
  if (await isPresent(path)) return { key, path };
  return withKindLock(cache, request.kind, progress, async () => {
    if (await isPresent(path)) return { key, path };
    return buildBeside(cache, request.kind, async (dir) => {
      await request.build(dir);
      return key;
    });
  });
}

/** Runs `body` while no other process builds or removes artifacts of this kind. */
export async function withKindLock<T>(
  cache: string,
  kind: string,
  progress: Progress,
  body: () => Promise<T>,
): Promise<T> {
  await mkdir(cache, { recursive: true, mode: 0o755 });
  return withFileLock(join(cache, `.lock-${kind}`), body, () =>
    progress(kind, "another process is building it; waiting"),
  );
}

/** Call under the kind's lock. `fill` fills an empty directory and answers its key. An artifact that already has that key stays. */
export async function buildBeside(
  cache: string,
  kind: string,
  fill: (dir: string) => Promise<string>,
): Promise<Artifact> {
  const temporaryPrefix = `.tmp-${kind}-`;
  for (const name of await readdir(cache))
    if (name.startsWith(temporaryPrefix)) await rm(join(cache, name), { recursive: true, force: true });
  const temporary = join(cache, `${temporaryPrefix}${process.pid}`);
  await mkdir(temporary, { mode: 0o755 });
  try {
    const key = await fill(temporary);
    const path = join(cache, `${kind}-${key}`);
    if (await isPresent(path)) await rm(temporary, { recursive: true, force: true });
    else {
      // Without this a power cut could leave a renamed directory with empty files in it.
      await run(["sync", "-f", temporary], { deadlineMs: 600_000 });
      await rename(temporary, path);
    }
    return { key, path };
  } catch (error) {
    await rm(temporary, { recursive: true, force: true });
    throw error;
  }
}

export async function isPresent(path: string): Promise<boolean> {
  try {
    await stat(path);
    return true;
  } catch {
    return false;
  }
}

/** Marks an artifact as needed by this process, by its time, which prune.ts reads. */
export async function use(path: string): Promise<void> {
  obtained.add(path);
  await freshen(path);
}

const freshen = (path: string): Promise<void> => utimes(path, new Date(), new Date()).catch(() => undefined);

/** Marks all artifacts of this process as used, daily. The returned function ends that. */
export function stayInUse(): () => void {
  const timer = setInterval(() => {
    for (const path of obtained) void freshen(path);
  }, freshenEveryMs);
  timer.unref();
  return () => clearInterval(timer);
}

/** Names of the directories that this process needs. */
export const obtainedNames = (): string[] => [...obtained].map((path) => basename(path));
