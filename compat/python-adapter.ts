/** Suites of the Python adapters, on our adapter (adapters/python): upstream's cases from PyPI, or of its repository. */
import { delimiter, join } from "node:path";
import { pythonByUv } from "../tests/fixtures/python-tools.ts";
import { repositoryRoot } from "../tests/fixtures/service.ts";
import { junitResults } from "./results.ts";
import type { CompatService } from "./service.ts";
import type { CaseResult, Suite } from "./suite.ts";

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

/** Tests of the sources in `folder`, by pytest, where one of our adapters and what tests them (adapters/python/tests) can be imported. */
export async function upstreamTests(
  folder: string,
  { run, cloche }: CompatService,
  adapter: string,
  words: string[],
): Promise<CaseResult[]> {
  const python = await pythonByUv(adapterRequirements);
  const report = join(folder, "report.xml");
  const paths = [join(adapter, "src"), "tests", "../../clients/python/src"].map((path) =>
    join(adaptersFolder, path),
  );
  const pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", `--junitxml=${report}`];
  await run(python, [...pytest, ...words], folder, { ...cloche, PYTHONPATH: paths.join(delimiter) });
  return junitResults(report);
}
