// The images' format and contents, without building Debian: the same files give the same digests, and nothing that runs in an
// image needs what only a checkout has.
import { createHash } from "node:crypto";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, utimesSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Readable } from "node:stream";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { codeFiles, modulePaths } from "../../deploy/images/contents.ts";
import { OciLayout } from "../../deploy/images/oci-layout.ts";
import { importsOf, sourceFiles } from "../repository/source-tree.ts";

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "cloche-layout-"));
});
afterAll(() => rmSync(folder, { recursive: true }));

interface Index {
  manifests: { digest: string; annotations: Record<string, string>; platform: object }[];
}

/** A layout of two files that were made in this order, at this time. */
async function layoutOf(name: string, files: readonly string[], seconds: number): Promise<Index> {
  const root = join(folder, `${name}-root`);
  mkdirSync(root);
  for (const file of files) {
    writeFileSync(join(root, file), `${file}\n`.repeat(10_000));
    utimesSync(join(root, file), seconds, seconds);
  }
  const layout = await OciLayout.open(join(folder, name));
  const layer = await layout.layerOfTar(["-C", root, "."]);
  const config = { entrypoint: ["/bin/a"], env: ["A=b"], labels: {} };
  await layout.image("registry.example/a:1", "amd64", [layer], config);
  await layout.close();
  return JSON.parse(readFileSync(join(folder, name, "index.json"), "utf8")) as Index;
}

describe("an image", () => {
  it("has the same digest whenever and in whatever order its files were made", async () => {
    const first = await layoutOf("first", ["a", "b"], 1_000_000_000);
    const second = await layoutOf("second", ["b", "a"], 1_700_000_000);
    expect(second).toEqual(first);
  });

  it("has the same layer however its archive comes", async () => {
    const bytes = Buffer.alloc(3_000_000, "some words that compress ");
    const digests: string[] = [];
    for (const size of [1_000, 65_536, 3_000_000]) {
      const layout = await OciLayout.open(join(folder, `pieces-${size}`));
      const count = Math.ceil(bytes.length / size);
      const pieces = Array.from({ length: count }, (_, i) => bytes.subarray(i * size, (i + 1) * size));
      digests.push((await layout.layer(Readable.from(pieces))).digest);
    }
    expect(new Set(digests).size).toBe(1);
  });

  it("names every blob by its SHA-256, down to the layer's archive", async () => {
    const { manifests } = await layoutOf("third", ["a"], 0);
    const blob = (digest: string): Buffer => {
      const bytes = readFileSync(join(folder, "third/blobs", digest.replace(":", "/")));
      expect(`sha256:${createHash("sha256").update(bytes).digest("hex")}`).toBe(digest);
      return bytes;
    };
    const manifest = JSON.parse(blob(manifests[0]?.digest ?? "").toString()) as {
      config: { digest: string };
      layers: { digest: string; size: number }[];
    };
    blob(manifest.config.digest);
    expect(manifest.layers.map(({ digest, size }) => blob(digest).length === size)).toEqual([true]);
  });

  it("has nothing twice, which would be a link to itself", () => {
    const paths = modulePaths();
    expect(paths.filter((path) => paths.some((other) => path.startsWith(`${other}/`)))).toEqual([]);
  });

  it("has the code of the service without its tests", () => {
    const files = codeFiles();
    expect(files).toContain("packages/app/src/main.ts");
    expect(files).toContain("native/sys/main.c");
    expect(files.filter((path) => path.endsWith(".test.ts"))).toEqual([]);
  });

  it("has every npm package that the service imports", () => {
    const there = new Set(modulePaths().map((path) => path.replace("node_modules/", "")));
    // Loaded by builds of artifacts alone, which images come with; clients are published by themselves.
    const notThere = new Set(["esbuild", "vitest"]);
    const missing = sourceFiles([".ts"])
      .filter(({ path }) => /^packages\/(?!cli|sdk)[a-z0-9]+\/(src|build)/.test(path))
      .filter(({ path }) => !/\.test\.ts$|\/testing\//.test(path))
      .flatMap((file) => importsOf(file).map((specifier) => ({ path: file.path, specifier })))
      .filter(({ specifier }) => /^(@[a-z]|[a-z])/.test(specifier) && !specifier.startsWith("node:"))
      .map(({ path, specifier }) => {
        const parts = specifier.split("/").slice(0, specifier.startsWith("@") ? 2 : 1);
        return { path, name: parts.join("/") };
      })
      .filter(({ name }) => !there.has(name) && !notThere.has(name));
    expect(missing).toEqual([]);
  });
});
