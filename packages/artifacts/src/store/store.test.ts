import { mkdir, mkdtemp, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { artifactKey, obtainArtifact } from "./store.ts";

describe("artifact store", () => {
  let cache: string;
  beforeEach(async () => {
    cache = await mkdtemp(join(tmpdir(), "cloche-store-"));
  });
  afterEach(() => rm(cache, { recursive: true }));
  const request = (build: (dir: string) => Promise<void>) => ({
    kind: "thing",
    inputs: { a: 1, b: [2] },
    build,
  });
  const visible = async () => (await readdir(cache)).filter((name) => !name.startsWith(".lock"));

  it("keys by content, not by the order of the inputs", () => {
    expect(artifactKey("k", { a: 1, b: 2 })).toBe(artifactKey("k", { b: 2, a: 1 }));
    expect(artifactKey("k", { a: 1 })).not.toBe(artifactKey("k", { a: 2 }));
    expect(artifactKey("k", { a: 1 })).not.toBe(artifactKey("l", { a: 1 }));
  });

  it("builds once however many ask at the same time", async () => {
    let builds = 0;
    const one = () =>
      obtainArtifact(
        cache,
        request(async (dir) => {
          builds += 1;
          await writeFile(join(dir, "file"), "content");
        }),
        () => {},
      );
    const [a, b] = await Promise.all([one(), one()]);
    expect(a).toEqual(b);
    expect(await one()).toEqual(a);
    expect(builds).toBe(1);
    expect(await readdir(a.path)).toEqual(["file"]);
  });

  it("leaves nothing of a failed build and tries again", async () => {
    const failing = request(async (dir) => {
      await writeFile(join(dir, "half"), "");
      throw new Error("no network");
    });
    await expect(obtainArtifact(cache, failing, () => {})).rejects.toThrow("no network");
    expect(await visible()).toEqual([]);
    const { path } = await obtainArtifact(
      cache,
      request(async () => {}),
      () => {},
    );
    expect(await readdir(path)).toEqual([]);
  });

  it("removes what a killed build left", async () => {
    await mkdir(join(cache, ".tmp-thing-0123-99"));
    await obtainArtifact(
      cache,
      request(async () => {}),
      () => {},
    );
    expect(await visible()).toEqual([`thing-${artifactKey("thing", { a: 1, b: [2] })}`]);
  });
});
