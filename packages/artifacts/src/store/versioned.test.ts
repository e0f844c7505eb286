import { mkdir, mkdtemp, readdir, readFile, rm, utimes, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import type { Versions } from "../apt/private-apt.ts";
import { pruneArtifacts } from "./prune.ts";
import {
  ageText,
  currentVersioned,
  obtainVersioned,
  rebuildVersioned,
  type VersionedRequest,
} from "./versioned.ts";

const dayMs = 24 * 3_600_000;
let cache: string;
let builds: number;
beforeEach(async () => {
  cache = await mkdtemp(join(tmpdir(), "cloche-versioned-"));
  builds = 0;
});
afterEach(() => rm(cache, { recursive: true }));

const progress = (): void => undefined;
const request = (versions: Versions, inputs: Record<string, unknown> = { recipe: 1 }): VersionedRequest => ({
  kind: "thing",
  inputs,
  build: async (dir) => {
    builds += 1;
    await writeFile(join(dir, "file"), JSON.stringify(versions));
    return versions;
  },
});
const listed = async (): Promise<string[]> =>
  (await readdir(cache)).filter((name) => !name.startsWith(".lock")).toSorted();

describe("a versioned artifact", () => {
  it("is built once, notes what it is made of, and is keyed by it", async () => {
    const [a, b] = await Promise.all([
      obtainVersioned(cache, request({ openssl: "1" }), progress),
      obtainVersioned(cache, request({ openssl: "1" }), progress),
    ]);
    expect(builds).toBe(1);
    expect(a).toEqual(b);
    expect(a.madeFrom.versions).toEqual({ openssl: "1" });
    expect(await listed()).toEqual([basename(a.path), `${basename(a.path)}.made-from.json`]);
    expect(await currentVersioned(cache, request({}))).toEqual(a);
  });

  it("made anew takes the place of the old for the next start, and leaves it where it is", async () => {
    const old = await obtainVersioned(cache, request({ openssl: "1" }), progress);
    const anew = await rebuildVersioned(cache, request({ openssl: "2" }), progress);
    expect(anew.key).not.toBe(old.key);
    expect(await readFile(join(old.path, "file"), "utf8")).toBe('{"openssl":"1"}');
    // A start asks no mirror for versions.
    expect(await obtainVersioned(cache, request({ openssl: "3" }), progress)).toEqual(anew);
    expect(builds).toBe(2);
  });

  it("made anew of the same packages stays one, with the later date", async () => {
    const old = await obtainVersioned(cache, request({ openssl: "1" }), progress);
    const anew = await rebuildVersioned(cache, request({ openssl: "1" }), progress);
    expect(anew.path).toBe(old.path);
    expect(anew.madeFrom.madeAtMs).toBeGreaterThanOrEqual(old.madeFrom.madeAtMs);
    expect(await listed()).toHaveLength(2);
  });

  it("of another recipe is not taken", async () => {
    const old = await obtainVersioned(cache, request({ openssl: "1" }), progress);
    const other = await obtainVersioned(cache, request({ openssl: "1" }, { recipe: 2 }), progress);
    expect(other.key).not.toBe(old.key);
  });

  it("whose note or directory is missing or damaged is built again", async () => {
    const one = await obtainVersioned(cache, request({ openssl: "1" }), progress);
    await writeFile(`${one.path}.made-from.json`, "{");
    const again = await obtainVersioned(cache, request({ openssl: "1" }), progress);
    expect([again.path, builds]).toEqual([one.path, 2]);
    await rm(one.path, { recursive: true });
    await obtainVersioned(cache, request({ openssl: "1" }), progress);
    expect(builds).toBe(3);
  });

  it("leaves nothing when its build fails", async () => {
    const failing = {
      ...request({}),
      build: async (dir: string): Promise<Versions> => {
        await writeFile(join(dir, "half"), "");
        throw new Error("the mirror is away");
      },
    };
    await expect(obtainVersioned(cache, failing, progress)).rejects.toThrow("mirror is away");
    expect(await listed()).toEqual([]);
  });

  it("is pruned with its note, and never while it is the one that a record names", async () => {
    const made = [];
    for (const version of ["1", "2", "3"])
      made.push(await rebuildVersioned(cache, request({ openssl: version }), progress));
    const [first, second] = made;
    if (first === undefined || second === undefined) throw new Error("not built");
    const records = join(cache, "records");
    await mkdir(records);
    await writeFile(join(records, "machine.json"), JSON.stringify({ root: first.path }));
    for (const { path } of made) await utimes(path, new Date(0), new Date(0));
    // This process has built them, so prune as another process.
    const pruned = await pruneArtifacts({ cache, records: [records], nowMs: Date.now() }, new Set());
    expect(pruned.removed).toContain(basename(second.path));
    expect(await listed()).toContain(basename(first.path));
    expect(await listed()).not.toContain(`${basename(second.path)}.made-from.json`);
  });

  it("tells its age once that is a week", async () => {
    const one = await obtainVersioned(cache, request({}), progress);
    const at = (days: number) => ageText(one, one.madeFrom.madeAtMs + days * dayMs);
    expect([at(0), at(6.9)]).toEqual([undefined, undefined]);
    expect(at(41.5)).toBe("made 41 days ago: npx cloche update looks for newer packages");
  });
});
