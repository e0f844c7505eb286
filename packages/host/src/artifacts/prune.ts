// Removes artifacts that nobody needs any more: an upgrade makes new ones beside the old.
//
// Kept, whatever their age: what this process has obtained, the newest of each kind that is still made, and whatever a record of a machine or a memory image
// names (suspended sandboxes are restored with the agent's root that they were made with). Of the rest, what was not used for
// UNUSED_DAYS: every start of any service, and each day that it runs, marks what it needs (store.ts).
import { readdir, readFile, rename, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import { withFileLock } from "./file-lock.ts";
import { obtainedNames } from "./store.ts";
import { notePath } from "./versioned.ts";

const UNUSED_DAYS = 30;
/** Kinds that no release makes any more: the newest of one is of no use either. `runsc`: Debian's, until 2026-11. */
const RETIRED = new Set(["runsc"]);
const DAY_MS = 24 * 3_600_000;
const ARTIFACT = /^([a-z-]+)-([0-9a-f]{16})$/;
/** Records are small; images of disks and memory are not read. */
const RECORD_BYTES_MAX = 256 * 1024;
const RECORD_DEPTH_MAX = 5;

export interface PruneOptions {
  cache: string;
  /** Directories with the records of machines, of this service and of others on this host. */
  records: readonly string[];
  nowMs: number;
}

export interface Pruned {
  /** Names of what was removed. */
  removed: string[];
  kept: number;
}

interface Candidate {
  name: string;
  kind: string;
  key: string;
  usedAtMs: number;
}

export async function pruneArtifacts(
  { cache, records, nowMs }: PruneOptions,
  needed: ReadonlySet<string> = new Set(obtainedNames()),
): Promise<Pruned> {
  const all = await artifactsIn(cache);
  const newest = new Map<string, Candidate>();
  for (const one of all) if (one.usedAtMs > (newest.get(one.kind)?.usedAtMs ?? -1)) newest.set(one.kind, one);
  const isNewest = (one: Candidate): boolean => newest.get(one.kind) === one && !RETIRED.has(one.kind);
  const unused = all.filter(
    (one) => !needed.has(one.name) && !isNewest(one) && one.usedAtMs < nowMs - UNUSED_DAYS * DAY_MS,
  );
  const named = await keysNamedIn(records, new Set(unused.map(({ key }) => key)));
  const removed: string[] = [];
  for (const one of unused) if (!named.has(one.key) && (await remove(cache, one))) removed.push(one.name);
  return { removed: removed.toSorted(), kept: all.length - removed.length };
}

async function artifactsIn(cache: string): Promise<Candidate[]> {
  const found: Candidate[] = [];
  for (const name of await readdir(cache)) {
    const [, kind, key] = ARTIFACT.exec(name) ?? [];
    const info = kind === undefined ? undefined : await stat(join(cache, name)).catch(() => undefined);
    if (kind !== undefined && key !== undefined && info?.isDirectory() === true)
      found.push({ name, kind, key, usedAtMs: info.mtimeMs });
  }
  return found;
}

/** Under the lock of its kind; a start that looked at it meanwhile keeps it. A crash leaves what the next build removes. */
function remove(cache: string, { name, kind, usedAtMs }: Candidate): Promise<boolean> {
  return withFileLock(join(cache, `.lock-${kind}`), async () => {
    const path = join(cache, name);
    const leaving = join(cache, `.tmp-${kind}-pruned-${process.pid}`);
    await rename(path, leaving);
    if ((await stat(leaving)).mtimeMs !== usedAtMs) {
      await rename(leaving, path);
      return false;
    }
    await rm(leaving, { recursive: true, force: true });
    await rm(notePath(path), { force: true });
    return true;
  });
}

/** Which of `keys` stand in a small file below one of the directories. */
async function keysNamedIn(directories: readonly string[], keys: ReadonlySet<string>): Promise<Set<string>> {
  const named = new Set<string>();
  if (keys.size === 0) return named;
  const look = async (directory: string, depth: number): Promise<void> => {
    for (const entry of await readdir(directory, { withFileTypes: true }).catch(absent)) {
      const path = join(directory, entry.name);
      if (entry.isDirectory() && depth < RECORD_DEPTH_MAX) await look(path, depth + 1);
      if (!entry.isFile()) continue;
      const size = (await stat(path).catch(absentFile))?.size ?? 0;
      if (size === 0 || size > RECORD_BYTES_MAX) continue;
      const text = await readFile(path, "latin1").catch(() => "");
      for (const [key] of text.matchAll(/[0-9a-f]{16}/g)) if (keys.has(key)) named.add(key);
    }
  };
  for (const directory of directories) await look(directory, 1);
  return named;
}

/** Machines come and go while we look; anything else that keeps us from reading a record must keep us from removing. */
function absent(error: NodeJS.ErrnoException): [] {
  if (error.code === "ENOENT") return [];
  throw error;
}
function absentFile(error: NodeJS.ErrnoException): undefined {
  if (error.code === "ENOENT") return undefined;
  throw error;
}
