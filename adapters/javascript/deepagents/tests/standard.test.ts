// LangChain's own suite of a sandbox; compat/langchain-deepagents-js.ts runs it among upstream's packages, where the suite is.
import { sandboxStandardTests } from "@langchain/sandbox-standard-tests/vitest";
import { ClocheSandbox } from "../src/index.ts";

sandboxStandardTests({
  name: "ClocheSandbox",
  createSandbox: (options) => ClocheSandbox.create(options),
  createUninitializedSandbox: () => new ClocheSandbox(),
  closeSandbox: (sandbox) => sandbox.close(),
  resolvePath: (name) => `/tmp/standard/${name}`,
});
