/**
 * Removes artifacts that are no longer needed: an upgrade makes new ones beside the old.
 *
 * Kept at any age: artifacts that this process has obtained, the newest of each kind that is still made, and artifacts named in a record of
 * a machine or memory image (suspended sandboxes are restored with the agent's root that they were made with). Others are removed after
 * unusedDays without use: every service marks its artifacts at each start and daily (store.ts).
 */
import { readdir, readFile, rename, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import { withFileLock } from "@cloche/base/file-lock";
import { obtainedNames } from "./store.ts";
import { notePath } from "./versioned.ts";

const unusedDays = 30;
/** Kinds that are no longer made, so that even the newest is of no use. `runsc`: Debian's, until 2026-11. */
const retired = new Set(["runsc"]);
const dayMs = 24 * 3_600_000;
const artifact = /^([a-z-]+)-([0-9a-f]{16})$/;
/** Larger files are images of disks and memory, and are not read. */
const recordBytesMax = 256 * 1024;
const recordDepthMax = 5;

export interface PruneOptions {
  cache: string;
  /** Directories with records of machines, of this service and others on this host. */
  records: readonly string[];
  nowMs: number;
}

export interface Pruned {
  /** Names of the removed artifacts. */
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
  const isNewest = (one: Candidate): boolean => newest.get(one.kind) === one && !retired.has(one.kind);
  const unused = all.filter(
    (one) => !needed.has(one.name) && !isNewest(one) && one.usedAtMs < nowMs - unusedDays * dayMs,
  );
  const named = await keysNamedIn(records, new Set(unused.map(({ key }) => key)));
  const removed: string[] = [];
  for (const one of unused) if (!named.has(one.key) && (await remove(cache, one))) removed.push(one.name);
  return { removed: removed.toSorted(), kept: all.length - removed.length };
}

async function artifactsIn(cache: string): Promise<Candidate[]> {
  const found: Candidate[] = [];
  for (const name of await readdir(cache)) {
    const [, kind, key] = artifact.exec(name) ?? [];
    const info = kind === undefined ? undefined : await stat(join(cache, name)).catch(() => undefined);
    if (kind !== undefined && key !== undefined && info?.isDirectory() === true)
      found.push({ name, kind, key, usedAtMs: info.mtimeMs });
  }
  return found;
}

/** Removes an artifact under its kind's lock, unless a start has used it meanwhile. After a crash the next build removes the rest. */
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

/** The keys that are named in a small file below one of the directories. */
async function keysNamedIn(directories: readonly string[], keys: ReadonlySet<string>): Promise<Set<string>> {
  const named = new Set<string>();
  if (keys.size === 0) return named;
  const visit = async (directory: string, depth: number): Promise<void> => {
    for (const entry of await readdir(directory, { withFileTypes: true }).catch(absent)) {
      const path = join(directory, entry.name);
      if (entry.isDirectory() && depth < recordDepthMax) await visit(path, depth + 1);
      if (!entry.isFile()) continue;
      const size = (await stat(path).catch(absentFile))?.size ?? 0;
      if (size === 0 || size > recordBytesMax) continue;
      const text = await readFile(path, "latin1").catch(() => "");
      for (const [key] of text.matchAll(/[0-9a-f]{16}/g)) if (keys.has(key)) named.add(key);
    }
  };
  for (const directory of directories) await visit(directory, 1);
  return named;
}

/** Only a missing record is fine, because machines come and go. Any other failure to read must stop the removal. */
function absent(error: NodeJS.ErrnoException): [] {
  if (error.code === "ENOENT") return [];
  throw error;
}
function absentFile(error: NodeJS.ErrnoException): undefined {
  if (error.code === "ENOENT") return undefined;
  throw error;
}
