/** mini-swe-agent's own tests of its agents and of the local environment, which is a sandbox of adapters/python/mini-swe-agent. */
import { upstreamTests } from "./python-adapter.ts";
import type { Suite } from "./suite.ts";

export const miniSweAgent: Suite = {
  name: "mini-swe-agent",
  repository: "SWE-agent/mini-swe-agent",
  pin: "a83fcae82d2a08f0ee0c688f9d137b3566c097f8",
  part: "agents and the local environment, which is a sandbox",
  out: {
    "a folder of this computer": [
      "test_local_environment_custom_cwd",
      "test_local_environment_cwd_parameter_override",
      "test_local_environment_default_cwd",
      "test_local_environment_file_operations",
      "test_local_environment_timeout_kills_child_process",
    ],
    "variables of this computer do not go into the sandbox": [
      "test_local_environment_existing_env_variables",
    ],
  },
  run: (folder, service) =>
    upstreamTests(folder, service, "mini-swe-agent", [
      "-p",
      "cloche_as_local",
      "tests/agents",
      "tests/environments/test_local.py",
      "tests/environments/test_init.py",
    ]),
};
