// The SDK as it is published: ESM and CommonJS for browsers and for Node, each entry with its declarations, the protocol inside.
import { rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { build, type Plugin } from "esbuild";
import { declarationFile } from "./declarations.ts";
import { root, sdkDeclarations } from "./sdk-declarations.ts";

/** Syntax of Node 16 and browsers of 2022: older ones than are supported can read it, and are told. */
export const target = "es2022";
const sources = join(root, "packages/sdk/src");

/** Node's entry takes the other as a file beside it, so that a program with both has one of each class. */
const besideIndex = (ending: string): Plugin => ({
  name: "beside-index",
  setup(plugin) {
    plugin.onResolve({ filter: /^\.\/index\.ts$/ }, () => ({ path: `./index${ending}`, external: true }));
  },
});

export async function buildSdk(folder: string): Promise<void> {
  rmSync(folder, { recursive: true, force: true });
  const declarations = sdkDeclarations();
  for (const [format, ending, types] of [
    ["esm", ".js", ".d.ts"],
    ["cjs", ".cjs", ".d.cts"],
  ] as const) {
    const shared = { bundle: true, outdir: folder, format, target, outExtension: { ".js": ending } };
    const chunks = format === "esm" && { splitting: true, chunkNames: "[name]-[hash]" };
    const index = join(sources, "index.ts");
    await build({ ...shared, ...chunks, entryPoints: { index }, platform: "neutral" });
    const browser = { entryPoints: { browser: index }, conditions: ["browser"] };
    await build({ ...shared, ...chunks, ...browser, platform: "neutral" });
    await build({
      ...shared,
      ...chunks,
      entryPoints: [join(sources, "node.ts")],
      platform: "node",
      external: ["ws"],
      plugins: [besideIndex(ending)],
    });
    for (const name of ["index", "node"] as const)
      writeFileSync(join(folder, `${name}${types}`), declarationFile(declarations[name], ending));
  }
}
