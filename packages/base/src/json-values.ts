import { boundJsonValues, limits } from "@cloche/protocol";
import { asBuffer } from "./as-buffer.ts";

/** Parses JSON of a caller with a bound of the work: throws as JSON.parse and `boundJsonValues` do. */
export function parseJson(body: Uint8Array, mostValues: number = limits.jsonValues): unknown {
  boundJsonValues(body, mostValues);
  return JSON.parse(asBuffer(body).toString("utf8"));
}
