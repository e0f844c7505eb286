import { mkdir, mkdtemp, readdir, rm, utimes, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { pruneArtifacts } from "./prune.ts";
import { obtainArtifact } from "./store.ts";

const nowMs = Date.now();
const dayMs = 24 * 3_600_000;

describe("pruneArtifacts", () => {
  let home: string;
  let cache: string;
  beforeEach(async () => {
    home = await mkdtemp(join(tmpdir(), "cloche-prune-"));
    cache = join(home, "cache");
    await mkdir(cache);
  });
  afterEach(() => rm(home, { recursive: true }));

  const key = (digit: number): string => String(digit).repeat(16);
  const artifact = async (kind: string, digit: number, daysAgo: number): Promise<string> => {
    const name = `${kind}-${key(digit)}`;
    await mkdir(join(cache, name));
    await writeFile(join(cache, name, "file"), "content");
    const time = new Date(nowMs - daysAgo * dayMs);
    await utimes(join(cache, name), time, time);
    return name;
  };
  const prune = (records: string[] = []) => pruneArtifacts({ cache, records, nowMs });
  const left = async (): Promise<string[]> =>
    (await readdir(cache)).filter((name) => !name.startsWith(".lock")).toSorted();

  it("removes what was not used for a month, and leaves the newest of each kind", async () => {
    const used = await artifact("agent", 1, 5);
    const old = await artifact("agent", 2, 31);
    const older = await artifact("agent", 3, 90);
    const only = await artifact("vm-kernel", 4, 400);
    await writeFile(join(cache, "kvm-probe.json"), "{}");
    await mkdir(join(cache, "npm"));
    expect(await prune()).toEqual({ removed: [old, older], kept: 2 });
    expect(await left()).toEqual([used, "kvm-probe.json", "npm", only].toSorted());
    expect(await prune()).toEqual({ removed: [], kept: 2 });
  });

  it("removes the newest, too, of a kind that no release makes any more", async () => {
    const debians = await artifact("runsc", 1, 31);
    await artifact("gvisor", 2, 31);
    expect(await prune()).toEqual({ removed: [debians], kept: 1 });
    await artifact("runsc", 3, 29);
    expect((await prune()).removed).toEqual([]);
  });

  it("keeps what this process has obtained, however old", async () => {
    await artifact("thing", 1, 1);
    const request = { kind: "thing", inputs: { mine: true }, build: async () => undefined };
    const { path } = await obtainArtifact(cache, request, () => undefined);
    const time = new Date(nowMs - 400 * dayMs);
    await utimes(path, time, time);
    expect((await prune()).removed).toEqual([]);
  });

  it("keeps what a record names: suspended sandboxes need it", async () => {
    await artifact("agent-root", 1, 1);
    const named = await artifact("agent-root", 2, 90);
    const forgotten = await artifact("agent-root", 3, 90);
    const records = join(home, "machines");
    await mkdir(join(records, "sbx-1", "memory"), { recursive: true });
    await writeFile(
      join(records, "sbx-1", "memory", "made-with"),
      JSON.stringify({ agentRootDir: `${cache}/${named}/root` }),
    );
    expect((await prune([records, join(home, "missing")])).removed).toEqual([forgotten]);
    expect(await left()).toContain(named);
  });

  it("removes nothing when a record cannot be read", async () => {
    await artifact("agent", 1, 1);
    await artifact("agent", 2, 90);
    await writeFile(join(home, "file"), "");
    await expect(prune([join(home, "file")])).rejects.toThrow("ENOTDIR");
    expect(await left()).toHaveLength(2);
  });
});
