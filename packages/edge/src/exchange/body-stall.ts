import { ClocheError } from "@cloche/protocol";
import type { EdgeLimits } from "../edge-limits.ts";
import type { Exchange } from "./exchange.ts";

/**
 * Refuses a request whose body stops arriving although the edge would read more. `bytesSeen`: bytes of the body so far.
 * The returned function ends the watch.
 */
export function watchBody(
  exchange: Exchange,
  { bodyStallMs }: EdgeLimits,
  bytesSeen: () => number,
): () => void {
  let seen = bytesSeen();
  const check = (): void => {
    if (exchange.request.complete || exchange.over) return;
    const held = exchange.request.isPaused() || exchange.expectsContinue !== exchange.continued;
    const now = bytesSeen();
    if (now === seen && !held) {
      exchange.bodyOver();
      exchange.refuse(new ClocheError("deadline_exceeded", "the request's body stopped coming"));
      return;
    }
    seen = now;
    timer = setTimeout(check, bodyStallMs);
  };
  let timer = setTimeout(check, bodyStallMs);
  return () => clearTimeout(timer);
}
