export { createHost, type Host } from "./service/create-host.ts";
export type { HostParts } from "./service/machines.ts";
export type { MachineDriver, Runtime } from "./machine/driver.ts";
export { GvisorDriver, type GvisorOptions } from "./machine/gvisor/driver.ts";
export { obtainKeeper } from "./machine/gvisor/keeper.ts";
