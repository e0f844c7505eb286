export { isAttachPath, processAttach } from "./attach.ts";
export { ProcessRecords } from "./process-records.ts";
export { ProcessTable } from "./process-table.ts";
export { processRoutes } from "./routes.ts";
export { readSignal, signalName, signalOf } from "./signals.ts";
