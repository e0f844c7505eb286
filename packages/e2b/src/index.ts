export { createE2b, type E2bEndpoint, type E2bOptions } from "./endpoint.ts";
