export { isAttachPath, processAttach } from "./attach.ts";
export { ProcessTable } from "./process-table.ts";
export { type ProcessRouteParts, processRoutes } from "./routes.ts";
