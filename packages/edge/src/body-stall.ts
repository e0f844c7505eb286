import { ClocheError } from "@cloche/protocol";
import type { EdgeLimits } from "./edge-limits.ts";
import type { Exchange } from "./exchange.ts";

/** A body that stands still although we would take more of it is given up. `bytesSeen`: of the body so far. Answers what ends the watch. */
export function watchBody(
  exchange: Exchange,
  { bodyStallMs }: EdgeLimits,
  bytesSeen: () => number,
): () => void {
  let seen = bytesSeen();
  const look = (): void => {
    if (exchange.request.complete || exchange.over) return;
    const held = exchange.request.isPaused() || exchange.expectsContinue !== exchange.continued;
    const now = bytesSeen();
    if (now === seen && !held) {
      exchange.bodyOver();
      exchange.refuse(new ClocheError("deadline_exceeded", "the request's body stopped coming"));
      return;
    }
    seen = now;
    timer = setTimeout(look, bodyStallMs);
  };
  let timer = setTimeout(look, bodyStallMs);
  return () => clearTimeout(timer);
}
