export * from "./bound-listener.ts";
export * from "./bounds.ts";
export * from "./connection-places.ts";
export * from "./control-frames.ts";
export * from "./held-bytes.ts";
export * from "./read-body.ts";
