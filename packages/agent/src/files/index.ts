export { fileRoutes } from "./routes.ts";
export { entryInfo } from "./entry-info.ts";
