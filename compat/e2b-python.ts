/** E2B's Python SDK: its own tests, for ordinary programs and for asyncio, by domain over TLS. */
import { join } from "node:path";
import { succeeded, uvProgram } from "../tests/fixtures/python-tools.ts";
import { junitResults } from "./results.ts";
import type { Suite } from "./suite.ts";

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
    "asks for envd 0.6.2 and later; this is 0.5.7": [
      "test_metadata > test_write_file_with_metadata…",
      "test_write_files_applies_metadata_to_every_file",
      "test_metadata_surfaced…",
      "test_overwriting_clears_stale_metadata",
      "test_metadata_set_via_xattrs_surfaced_in_get_info",
      "test_watch_directory_changes_with_entry_info",
      "test_watch_directory_changes_with_network_mounts_allowed",
    ],
  },
  async run(folder, { run, e2bByDomain }) {
    const sdk = join(folder, "packages/python-sdk");
    await succeeded(await uvProgram(), ["sync", "--frozen"], { cwd: sdk });
    const report = join(folder, "report.xml");
    const without = ["sync/template_sync", "async/template_async"].map((path) => `--ignore=tests/${path}`);
    const words = ["-m", "pytest", "-n", "4", "-q", `--junitxml=${report}`, ...without, "tests"];
    await run(join(sdk, ".venv/bin/python"), words, sdk, e2bByDomain);
    return junitResults(report);
  },
};
