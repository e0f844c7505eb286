/** ComputeSDK's suite of a provider, on adapters/javascript/computesdk. */
import { cpSync, mkdirSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { repositoryRoot } from "../tests/fixtures/service.ts";
import { buildPackages, computesdk } from "./computesdk-packages.ts";
import { vitestResults } from "./results.ts";
import type { Suite } from "./suite.ts";

export const computesdkProvider: Suite = {
  name: "computesdk",
  ...computesdk,
  part: "the suite of `@computesdk/test-utils`, files and streams included",
  out: {},
  async run(folder, { run, cloche }) {
    await buildPackages(folder);
    // Beside a provider of theirs, for what that one may import.
    const beside = join(folder, "packages/e2b");
    cpSync(join(repositoryRoot, "adapters/javascript/computesdk"), join(beside, "cloche"), {
      recursive: true,
    });
    mkdirSync(join(beside, "node_modules/@cloche"));
    symlinkSync(join(repositoryRoot, "packages/sdk"), join(beside, "node_modules/@cloche/sdk"));
    const report = join(folder, "report.json");
    const reporters = ["--reporter=json", "--reporter=default", `--outputFile.json=${report}`];
    const vitest = join(beside, "node_modules/vitest/vitest.mjs");
    await run(process.execPath, [vitest, "run", "cloche/", ...reporters], beside, cloche);
    return vitestResults(report, beside);
  },
};
