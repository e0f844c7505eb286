// Declarations of the SDK's two entries, as the package ships them and as the report of its public surface lists them.
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { flatten, resolver } from "./declarations.ts";

export const root = fileURLToPath(new URL("../..", import.meta.url));
type Flat = ReturnType<typeof flatten>;

/** Compiles and flattens. Takes two seconds. */
export function sdkDeclarations(): { index: Flat; node: Flat } {
  const folder = mkdtempSync(join(tmpdir(), "cloche-declarations-"));
  try {
    const project = join(folder, "tsconfig.json");
    const compilerOptions = {
      noEmit: false,
      declaration: true,
      emitDeclarationOnly: true,
      outDir: folder,
      rootDir: join(root, "packages"),
      typeRoots: [join(root, "node_modules/@types")],
    };
    const files = ["packages/sdk/src/node.ts", "packages/protocol/src/index.ts"].map((path) =>
      join(root, path),
    );
    writeFileSync(
      project,
      JSON.stringify({ extends: join(root, "tsconfig.json"), compilerOptions, include: [], files }),
    );
    execFileSync(process.execPath, [join(root, "node_modules/typescript/bin/tsc"), "-p", project], {
      stdio: "inherit",
    });
    const index = join(folder, "sdk/src/index.d.ts");
    const resolve = resolver(folder, { "@cloche/protocol": "protocol/src/index.d.ts" });
    return {
      index: flatten({ file: index, resolve, outside: new Set() }),
      node: flatten({ file: join(folder, "sdk/src/node.d.ts"), resolve, outside: new Set([index]) }),
    };
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
