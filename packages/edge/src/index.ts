export { connectThroughRelay, type HostLinks } from "./upstream/relays.ts";
export { createEdge, type Edge, type EdgeOptions, type EdgePorts } from "./edge.ts";
export type { CarriedRequest, NeighbourPort } from "./routing/neighbour.ts";
export type { TlsFiles } from "./http1/listener.ts";
export { edgeLimits, type EdgeLimits } from "./edge-limits.ts";
export type { CorsOrigins } from "./routing/cors.ts";
export type { RouteClient } from "./route-table.ts";
export type { HostDataPlane, HostRequestContext } from "./routing/router.ts";
