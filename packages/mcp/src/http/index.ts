export { type McpEndpoint, type McpEndpointOptions, openMcpEndpoint, type ServerDrain } from "./endpoint.ts";
