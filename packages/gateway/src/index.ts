export { type Database, openPostgres, openSqlite } from "./database/database.ts";
export type { Team } from "./database/teams.ts";
export { createGateway, type Gateway, type GatewayConfig, type GatewayOptions } from "./gateway.ts";
export { type CorsOrigins, parseCorsOrigins } from "./http/cors.ts";
export type { GatewayHandler } from "./http/handler.ts";
export type { Listener } from "./http/listener.ts";
export type { HostClient } from "./lifecycle/host-calls.ts";
export type { CreatedApiKey } from "./rpc/api-key-service.ts";
export type { SigningKey } from "./tokens/signing-keys.ts";
