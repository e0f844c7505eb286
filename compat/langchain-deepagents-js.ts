/** LangChain's standard tests of a Deep Agents sandbox in JavaScript, on adapters/javascript/deepagents. */
import { cpSync, mkdirSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { succeeded } from "../tests/fixtures/python-tools.ts";
import { repositoryRoot } from "../tests/fixtures/service.ts";
import { vitestResults } from "./results.ts";
import type { Suite } from "./suite.ts";

const PNPM = "pnpm@10.29.2";
const suite = "@langchain/sandbox-standard-tests";

export const langchainDeepagentsJs: Suite = {
  name: "langchain-deepagents-js",
  repository: "langchain-ai/deepagentsjs",
  pin: "c0bc7692304f591526eadf9172c60a594f2a933f",
  part: "`libs/standard-tests`: all",
  out: {},
  async run(folder, { run, cloche }) {
    const pnpm = async (...words: string[]): Promise<string> =>
      await succeeded("npx", ["-y", PNPM, ...words], { cwd: folder });
    await pnpm("install", "--frozen-lockfile", "--ignore-scripts", "--filter", `${suite}...`);
    for (const name of ["deepagents", suite]) await pnpm("--filter", name, "run", "build");
    const beside = join(folder, "libs/standard-tests");
    cpSync(join(repositoryRoot, "adapters/javascript/deepagents"), join(beside, "cloche"), {
      recursive: true,
    });
    for (const scope of ["@cloche", "@langchain"])
      mkdirSync(join(beside, "node_modules", scope), { recursive: true });
    symlinkSync(join(repositoryRoot, "packages/sdk"), join(beside, "node_modules/@cloche/sdk"));
    symlinkSync(beside, join(beside, "node_modules", suite));
    const report = join(folder, "report.json");
    const reporters = ["--reporter=json", "--reporter=default", `--outputFile.json=${report}`];
    const vitest = join(beside, "node_modules/vitest/vitest.mjs");
    await run(process.execPath, [vitest, "run", "cloche/", ...reporters], beside, cloche);
    return vitestResults(report, beside);
  },
};
