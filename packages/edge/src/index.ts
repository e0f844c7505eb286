export { connectThroughRelay, type HostLinks } from "./relays.ts";
export { createEdge, type Edge, type EdgeOptions, type EdgePorts } from "./edge.ts";
export type { TlsFiles } from "./listener.ts";
export { edgeLimits, type EdgeLimits } from "./edge-limits.ts";
export type { CorsOrigins } from "./cors.ts";
export type { RouteClient } from "./route-table.ts";
export type { HostDataPlane, HostRequestContext } from "./router.ts";
