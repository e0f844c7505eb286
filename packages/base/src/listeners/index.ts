export * from "./bound-listener.ts";
export * from "./bounds.ts";
export * from "./connection-places.ts";
export * from "./control-frames.ts";
export * from "./held-bytes.ts";
export { PacedRequest } from "./paced-request.ts";
export { paceStream } from "./paced-streams.ts";
export * from "./read-body.ts";
export { PieceRate } from "./piece-rate.ts";
