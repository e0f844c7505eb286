/** E2B's Python SDK: its own tests, for ordinary programs and for asyncio, by domain over TLS. */
import { availableParallelism } from "node:os";
import { join } from "node:path";
import { succeeded, uvProgram } from "../tests/fixtures/python-tools.ts";
import { junitResults } from "./results.ts";
import type { CompatService } from "./service.ts";
import type { CaseResult, Suite } from "./suite.ts";

export const e2bPython: Suite = {
  name: "e2b-python",
  repository: "e2b-dev/E2B",
  pin: "b8029973aa7da5f741f7bb1a9f833b38a0885438",
  part: "python-sdk: all but templates",
  out: {
    "needs the internet": [
      "test_internet_access_enabled",
      "test_internet_access_default",
      "test_allow_specific_ip_with_deny_all",
      "test_allow_takes_precedence_over_deny",
      "test_update_network_applies_restrictions",
      "test_update_network_clears_existing_rules",
    ],
    "answered by the edge with a status of its own: 401 without a token": ["test_allow_public_traffic_false"],
    "a policy lists what may be reached, not single addresses that may not": ["test_deny_specific_ip"],
    "nothing looks into traffic or changes it": [
      "test_firewall_transform_injects_headers",
      "test_mask_request_host",
    ],
    "a resume goes on with the memory that was saved": ["test_auto_pause_filesystem_only_reboots"],
  },
  async install(folder) {
    await succeeded(await uvProgram(), ["sync", "--frozen"], { cwd: join(folder, "packages/python-sdk") });
  },
  run(folder, service) {
    const without = ["sync/template_sync", "async/template_async"].map((path) => `--ignore=tests/${path}`);
    return tests(folder, service, [...without, "tests"]);
  },
  again(folder, service, cases) {
    const words = cases.map(({ id }) => {
      const [module = "", name = ""] = id.split(" > ");
      return `${module.replaceAll(".", "/")}.py::${name}`;
    });
    return tests(folder, service, [...new Set(words)]);
  },
};

async function tests(
  folder: string,
  { run, e2bByDomain }: CompatService,
  words: readonly string[],
): Promise<CaseResult[]> {
  const sdk = join(folder, "packages/python-sdk");
  const report = join(folder, "report.xml");
  const workers = String(availableParallelism());
  const pytest = ["-m", "pytest", "-n", workers, "-q", `--junitxml=${report}`, ...words];
  await run(join(sdk, ".venv/bin/python"), pytest, sdk, e2bByDomain);
  return junitResults(report);
}
