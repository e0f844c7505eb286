/** A suite of the Python adapters: upstream's cases from PyPI, on our adapter (adapters/python). */
import { join } from "node:path";
import { pythonByUv } from "../tests/fixtures/python-tools.ts";
import { repositoryRoot } from "../tests/fixtures/service.ts";
import { junitResults } from "./results.ts";
import type { Suite } from "./suite.ts";

export const adaptersFolder = join(repositoryRoot, "adapters/python");
export const adapterRequirements = join(adaptersFolder, "requirements.txt");

export const pythonAdapter =
  (file: string): Suite["run"] =>
  async (folder, { run, cloche }) => {
    const python = await pythonByUv(adapterRequirements);
    const report = join(folder, "report.xml");
    const words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", `--junitxml=${report}`, file];
    await run(python, words, adaptersFolder, cloche);
    return junitResults(report);
  };
