export { createAgent, type Agent } from "./agent.ts";
export { readBootConfig, type BootConfig } from "./boot-config.ts";
