/** SWE-ReX's own tests of a runtime, on adapters/python/swe-rex. */
import { copyFileSync } from "node:fs";
import { join } from "node:path";
import { adaptersFolder, upstreamTests } from "./python-adapter.ts";
import type { Suite } from "./suite.ts";

export const sweRex: Suite = {
  name: "swe-rex",
  repository: "SWE-agent/SWE-ReX",
  pin: "5c995c365dfb1fd5bc56fda688be5d8538f9931f",
  part: "`test_execution.py`: all, with swe-rex 1.4.0 of PyPI",
  out: {
    "reads by the sandbox what the test wrote on this computer, or the other way": [
      "test_read_write_file",
      "test_read_large_file",
    ],
    "gives less a tenth of a second to start; fails so on SWE-ReX's own local runtime too": [
      "test_interrupt_pager",
    ],
  },
  async run(folder, service) {
    // Their fixtures start a server of theirs on this computer.
    copyFileSync(join(adaptersFolder, "tests/swe_rex_fixtures.py"), join(folder, "tests/conftest.py"));
    return upstreamTests(folder, service, "swe-rex", ["tests/test_execution.py"]);
  },
};
