// Content-addressed artifacts under CLOCHE_CACHE: `<kind>-<key>/`, where the key is a hash of everything that went in.
// Owns that directory. Several services and test homes share it: a per-kind file lock lets one build while others wait.
//
//   missing ──build in .tmp-<kind>-…──▶ rename ──▶ present (never changed again)
//
// What survives a crash: finished artifacts. A half-built one lies in a .tmp- directory that the next build removes.
import { createHash } from "node:crypto";
import { mkdir, readdir, rename, rm, stat, utimes } from "node:fs/promises";
import { basename, join } from "node:path";
import { run } from "../sys/run.ts";
import { withFileLock } from "./file-lock.ts";
import type { Progress } from "./step.ts";

const KEY_CHARS = 16;
const FRESHEN_EVERY_MS = 24 * 3_600_000;

/** Paths of what this process has obtained: what it needs for as long as it runs. */
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
    .slice(0, KEY_CHARS);
}

/** The artifact of these inputs, built when it is not there yet. Concurrent callers, in any process, build once. */
export async function obtainArtifact(
  cache: string,
  request: ArtifactRequest,
  progress: Progress,
): Promise<Artifact> {
  const key = artifactKey(request.kind, request.inputs);
  const path = join(cache, `${request.kind}-${key}`);
  obtained.add(path);
  if (await present(path)) return { key, path };
  await mkdir(cache, { recursive: true, mode: 0o755 });
  return withFileLock(
    join(cache, `.lock-${request.kind}`),
    async () => {
      if (await present(path)) return { key, path };
      const temporaryPrefix = `.tmp-${request.kind}-`;
      for (const name of await readdir(cache))
        if (name.startsWith(temporaryPrefix)) await rm(join(cache, name), { recursive: true, force: true });
      const temporary = join(cache, `${temporaryPrefix}${key}-${process.pid}`);
      await mkdir(temporary, { mode: 0o755 });
      try {
        await request.build(temporary);
        // Without this a power cut could leave a renamed directory with empty files in it.
        await run(["sync", "-f", temporary], { deadlineMs: 600_000 });
        await rename(temporary, path);
      } catch (error) {
        await rm(temporary, { recursive: true, force: true });
        throw error;
      }
      return { key, path };
    },
    () => progress(request.kind, "another process is building it; waiting"),
  );
}

async function present(path: string): Promise<boolean> {
  try {
    await stat(path);
  } catch {
    return false;
  }
  await freshen(path);
  return true;
}

/** The time tells a later clean-up (prune.ts) which artifacts are still in use. */
const freshen = (path: string): Promise<void> => utimes(path, new Date(), new Date()).catch(() => undefined);

/** Says daily that what this process has obtained is in use; answers how to end that. */
export function stayInUse(): () => void {
  const timer = setInterval(() => {
    for (const path of obtained) void freshen(path);
  }, FRESHEN_EVERY_MS);
  timer.unref();
  return () => clearInterval(timer);
}

/** Names of the directories that this process needs. */
export const obtainedNames = (): string[] => [...obtained].map((path) => basename(path));
