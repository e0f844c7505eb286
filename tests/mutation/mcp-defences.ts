// Defences of the MCP endpoint (defences.ts).
import type { Defence } from "./defence.ts";

const door = { project: "unit", test: "packages/mcp/src/http/endpoint.test.ts" } as const;

export const mcpDefences: readonly Defence[] = [
  {
    what: "MCP answers no name of the host that it does not know",
    file: "packages/mcp/src/http/endpoint.ts",
    find: "!hasOurHost(request, response) ||",
    replace: "",
    ...door,
    named: "its name in Host",
  },
  {
    what: "MCP answers no page of another origin",
    file: "packages/mcp/src/http/endpoint.ts",
    find: "|| !hasOurOrigin(request, response)",
    replace: "|| hasOurOrigin === undefined",
    ...door,
    named: "its Origin",
  },
  {
    what: "MCP asks the gateway about the key of each request",
    file: "packages/mcp/src/http/caller.ts",
    find: "await cloche.gateway.listSandboxes({ page_size: 1 });",
    replace: "await Promise.resolve();",
    ...door,
    named: "revoked",
  },
  {
    what: "an MCP session is its API key's alone",
    file: "packages/mcp/src/http/sessions.ts",
    find: "|| session.keyHash !== caller.keyHash",
    replace: "",
    ...door,
    named: "another key's session",
  },
  {
    what: "MCP sessions are bounded",
    file: "packages/mcp/src/http/sessions.ts",
    find: "if (own.length >= this.#limits.sessionsPerKey)",
    replace: "if (false)",
    ...door,
    named: "are bounded",
  },
  {
    what: "MCP requests of a key are bounded",
    file: "packages/mcp/src/http/endpoint.ts",
    find: "if (count >= this.#limits.requestsPerKey)",
    replace: "if (false)",
    ...door,
    named: "of one key are bounded",
  },
  {
    what: "an exec that its model cancels is killed",
    file: "packages/mcp/src/tools/exec.ts",
    find: "timeout_ms: Math.ceil(timeout_seconds * 1_000), signal: call.signal }",
    replace: "timeout_ms: Math.ceil(timeout_seconds * 1_000) }",
    project: "clients",
    test: "tests/clients/mcp.test.ts",
    named: "cancelled",
    heavy: true,
  },
  {
    what: "a directory's list takes bounded memory of the MCP server",
    file: "packages/mcp/src/tools/files.ts",
    find: "if (more)\n    throw new ToolError(\n      `the list of",
    replace: "if (more && depth < 0)\n    throw new ToolError(\n      `the list of",
    project: "unit",
    test: "packages/mcp/src/tools/files.test.ts",
    named: "larger than",
  },
];
