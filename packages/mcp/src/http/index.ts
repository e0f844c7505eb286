export { type McpEndpoint, type McpEndpointOptions, openMcpEndpoint } from "./endpoint.ts";
