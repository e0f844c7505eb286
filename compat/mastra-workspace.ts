/** Mastra's suite of a workspace's sandbox, on adapters/javascript/mastra. */
import { cpSync, mkdirSync, readdirSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { nodeTools } from "../tests/fixtures/python-tools.ts";
import { repositoryRoot } from "../tests/fixtures/service.ts";
import { vitestResults } from "./results.ts";
import type { Suite } from "./suite.ts";

const adapters = join(repositoryRoot, "adapters/javascript");

export const mastraWorkspace: Suite = {
  name: "mastra-workspace",
  repository: "mastra-ai/mastra",
  pin: "0206714b28df48041767706d79691be368e363e8",
  part: "`workspaces/_test-utils`: sandboxes, on the published `@mastra/core`; no mounts",
  out: {},
  async run(folder, { run, cloche }) {
    // The suite needs no package but the two that it is a peer of.
    const modules = join(folder, "node_modules");
    for (const scope of ["@cloche", "@internal"]) mkdirSync(join(modules, scope), { recursive: true });
    const tools = await nodeTools(adapters);
    for (const name of readdirSync(tools)) symlinkSync(join(tools, name), join(modules, name));
    symlinkSync(join(repositoryRoot, "packages/sdk"), join(modules, "@cloche/sdk"));
    symlinkSync(join(repositoryRoot, "node_modules/vitest"), join(modules, "vitest"));
    symlinkSync(join(folder, "workspaces/_test-utils"), join(modules, "@internal/workspace-test-utils"));
    cpSync(join(adapters, "mastra"), join(folder, "cloche"), { recursive: true });
    const report = join(folder, "report.json");
    const reporters = ["--reporter=json", "--reporter=default", `--outputFile.json=${report}`];
    const vitest = join(modules, "vitest/vitest.mjs");
    await run(process.execPath, [vitest, "run", "--root", folder, "cloche/", ...reporters], folder, cloche);
    return vitestResults(report, folder);
  },
};
