/** ComputeSDK's own provider for E2B, `@computesdk/e2b`, unmodified, at the E2B-compatible endpoint. */
import { join } from "node:path";
import { buildPackages, computesdk } from "./computesdk-packages.ts";
import { vitestResults } from "./results.ts";
import type { Suite } from "./suite.ts";

export const computesdkE2b: Suite = {
  name: "computesdk-e2b",
  ...computesdk,
  part: "`@computesdk/e2b`: all",
  out: {},
  async run(folder, { run, e2bByDomain }) {
    await buildPackages(folder);
    const beside = join(folder, "packages/e2b");
    const report = join(folder, "report.json");
    const reporters = ["--reporter=json", "--reporter=default", `--outputFile.json=${report}`];
    const vitest = join(beside, "node_modules/vitest/vitest.mjs");
    await run(process.execPath, [vitest, "run", ...reporters], beside, e2bByDomain);
    return vitestResults(report, beside);
  },
};
