/** Inspect AI's own checks of a sandbox provider, on adapters/python/inspect. */
import { pythonAdapter } from "./python-adapter.ts";
import type { Suite } from "./suite.ts";

export const inspectAi: Suite = {
  name: "inspect-ai",
  pin: "inspect-ai 0.3.285",
  part: "`inspect_ai.util._sandbox.self_check`",
  out: {},
  run: pythonAdapter("tests/test_inspect.py"),
};
