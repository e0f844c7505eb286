import { fileURLToPath } from "node:url";

/**
 * Bundles the agent into the one file that every sandbox runs: CommonJS, because Node starts it fastest, and minified
 * without renaming, so that stacks in the log stay readable. Answers the bundle's size in bytes.
 */
export async function buildAgent(outFile: string): Promise<number> {
  // Only a build needs it: images of the service come without.
  const { build } = await import("esbuild");
  const result = await build({
    entryPoints: [fileURLToPath(new URL("./src/main.ts", import.meta.url))],
    outfile: outFile,
    bundle: true,
    platform: "node",
    target: "node24",
    format: "cjs",
    minifySyntax: true,
    minifyWhitespace: true,
    legalComments: "none",
    metafile: true,
    logLevel: "warning",
  });
  return Object.values(result.metafile.outputs).reduce((sum, { bytes }) => sum + bytes, 0);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const outFile = process.argv[2] ?? fileURLToPath(new URL("./dist/agent.cjs", import.meta.url));
  console.log(`${outFile}: ${await buildAgent(outFile)} bytes`);
}
