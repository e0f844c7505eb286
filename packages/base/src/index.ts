export * from "./clock.ts";
export * from "./log.ts";
export * from "./cleanup.ts";
export * from "./serial-queue.ts";
export * from "./saga.ts";
export * from "./durable-file.ts";
export * from "./http.ts";
export * from "./config.ts";
