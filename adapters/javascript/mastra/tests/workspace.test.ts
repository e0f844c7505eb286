// Mastra's own suite of a sandbox; compat/mastra-workspace.ts runs it, where the suite is.
import { createSandboxTestSuite } from "@internal/workspace-test-utils/sandbox";
import { Cloche } from "@cloche/sdk";
import { ClocheSandbox } from "../src/index.ts";

createSandboxTestSuite({
  suiteName: "ClocheSandbox",
  createSandbox: (options) => new ClocheSandbox(options),
  createInvalidSandbox: () => new ClocheSandbox({ request: { memory_mb: 1 } }),
  killSandboxExternally: async (sandbox) => {
    const { sandbox: machine } = sandbox as ClocheSandbox;
    await new Cloche().gateway.deleteSandbox(machine.id);
    await machine.waitUntilDeleted();
  },
  capabilities: { supportsMounting: false },
  testTimeout: 60_000,
});
