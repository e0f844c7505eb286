export { isAttachPath, processAttach } from "./attach.ts";
export { ProcessTable } from "./process-table.ts";
export { processRoutes } from "./routes.ts";
