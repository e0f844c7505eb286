// The SDK's public surface on one page, without comments: `npm run api-report` writes it, a test compares it.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { declarationFile } from "./declarations.ts";
import { root, sdkDeclarations } from "./sdk-declarations.ts";

export const reportPath = join(root, "packages/sdk/api-report.txt");

export function apiReport(declarations: ReturnType<typeof sdkDeclarations>): string {
  const page = (["index", "node"] as const).map((name) => {
    const text = declarationFile(declarations[name], ".js").replaceAll(/^ *\/\*\*[^]*?\*\/\n/gm, "");
    return `// ${name === "index" ? "@cloche/sdk" : "@cloche/sdk in Node, and @cloche/sdk/node: in addition"}\n${text}`;
  });
  return page.join("\n");
}

if (process.argv[1] === fileURLToPath(import.meta.url))
  writeFileSync(reportPath, apiReport(sdkDeclarations()));
