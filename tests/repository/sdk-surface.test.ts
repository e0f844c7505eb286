// What the SDK shows to those who install it: each change of it is seen, all of it is described, and a browser can carry it.
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { gzipSync } from "node:zlib";
import { join } from "node:path";
import { build } from "esbuild";
import { describe, expect, onTestFinished, test } from "vitest";
import { apiReport, reportPath } from "../../scripts/package/api-report.ts";
import { buildSdk } from "../../scripts/package/build-sdk.ts";
import type { Declaration } from "../../scripts/package/declarations.ts";
import { sdkDeclarations } from "../../scripts/package/sdk-declarations.ts";
import { repositoryRoot } from "./source-tree.ts";

const browserBytesMax = 25_000;
/** All that the SDK exports, the gateway's client included, in one file. */
const allInOneBytesMax = 33_000;
const surface = sdkDeclarations();

/** Public declarations, fields and methods without a comment of their own. */
function undescribed(declarations: readonly Declaration[]): string[] {
  return declarations.flatMap(({ name, text }) => {
    const lines = text.split("\n");
    const isBody = /^(declare (abstract )?class|interface) /m.test(text);
    const members = lines.flatMap((line, at) => {
      const member = /^ {4}(?:readonly |static |get |set |declare |protected )*(\w+)[?(:<]/.exec(line)?.[1];
      const isTold = lines[at - 1]?.endsWith("*/") === true;
      return !isBody || member === undefined || member === "constructor" || member === "private" || isTold
        ? []
        : [`${name}.${member}`];
    });
    return [...(text.startsWith("/**") ? [] : [name]), ...members];
  });
}

const bundled = async (entry: string, minify = true) =>
  build({
    stdin: { contents: entry, resolveDir: join(repositoryRoot, "packages/sdk") },
    bundle: true,
    minify,
    format: "esm",
    splitting: true,
    outdir: "/nonexistent",
    platform: "browser",
    target: "es2022",
    write: false,
    metafile: true,
    logLevel: "silent",
  });

describe("the SDK", () => {
  test("has the public surface of packages/sdk/api-report.txt", () => {
    const report = readFileSync(reportPath, "utf8");
    expect(
      apiReport(surface),
      "the public surface changed: run `npm run api-report` and look at the difference",
    ).toBe(report);
  });

  test("describes every public thing, field and method, and sends nobody who reads it elsewhere", () => {
    const all = [...surface.index.declarations, ...surface.node.declarations];
    expect(undescribed(all)).toEqual([]);
    expect(
      all.filter(({ text }) => /\b(spec|docs|packages)\/[\w./-]+/.test(text)).map(({ name }) => name),
    ).toEqual([]);
    const offender = "interface A {\n    /** Told. */\n    a: string;\n    b?: string;\n    c(): void;\n}";
    expect(undescribed([{ name: "A", text: offender, exported: "type" }])).toEqual(["A", "A.b", "A.c"]);
  });

  test(`takes at most ${browserBytesMax} bytes of a browser's page, and asks it for no module of Node`, async () => {
    const { outputFiles, metafile } = await bundled('export * from "./src/index.ts";');
    const [main] = outputFiles.filter(({ path }) => path.endsWith("stdin.js"));
    const entry = Object.entries(metafile.outputs).find(([path]) => path.endsWith("stdin.js"))?.[1];
    const chunks =
      entry?.imports.filter(({ kind }) => kind === "import-statement").map(({ path }) => path) ?? [];
    // What comes with the page: the rest is fetched by attach and connectPort.
    const bytes = [main?.path ?? "", ...chunks].reduce(
      (sum, path) => sum + (metafile.outputs[path]?.bytes ?? main?.contents.length ?? 0),
      0,
    );
    expect(gzipSync(main?.contents ?? "").length).toBeGreaterThan(1_000);
    expect(bytes).toBeLessThanOrEqual(browserBytesMax);
    const asked = Object.values(metafile.inputs).flatMap(({ imports }) => imports.map(({ path }) => path));
    expect(asked.filter((path) => path.startsWith("node:") || path === "ws")).toEqual([]);
    await expect(bundled('export * from "./src/node.ts";')).rejects.toThrow("node:http");
  });

  test("takes as little of a page that is one file and opens a data plane, as published", async () => {
    const folder = mkdtempSync(join(tmpdir(), "cloche-sdk-"));
    onTestFinished(() => rmSync(folder, { recursive: true }));
    await buildSdk(folder);
    const bytesOf = async (contents: string): Promise<number> => {
      const stdin = { contents, resolveDir: folder };
      const options = { bundle: true, minify: true, format: "esm", target: "es2022", write: false } as const;
      const { outputFiles } = await build({ ...options, stdin, platform: "browser" });
      return outputFiles[0]?.contents.length ?? 0;
    };
    const page = await bytesOf('export { openDataPlane } from "./browser.js";');
    expect(page).toBeGreaterThan(10_000);
    expect(page).toBeLessThanOrEqual(browserBytesMax);
    expect(await bytesOf('export * from "./browser.js";')).toBeLessThanOrEqual(allInOneBytesMax);
  });

  test("is here in its workspace form; a pack that was killed leaves the other", () => {
    for (const name of ["sdk", "cli"]) {
      const folder = join(repositoryRoot, "packages", name);
      const { exports } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8")) as {
        exports: object;
      };
      const remedy = `run sh scripts/node.sh scripts/package/main.ts restore ${name}`;
      expect(JSON.stringify(exports), remedy).toContain("./src/index.ts");
      expect(existsSync(join(folder, "dist/workspace-package.json")), remedy).toBe(false);
    }
  });
});
