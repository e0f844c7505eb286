/** Cloche's MCP server: `createMcpServer` builds it for one client, `serveOverStdio` serves it on a pair of streams; `@cloche/mcp/http` on a port. */
export { createMcpServer, type McpServerOptions } from "./server.ts";
export { serveOverStdio } from "./stdio.ts";
