/**
 * Reads and discards the rest of a request that was answered before it was complete. Most clients send their whole body
 * before they read, and lose the answer when their body is met by a reset. Limits: bytes, time without a byte, and
 * total time.
 */
import type { IncomingMessage } from "node:http";
import type { EdgeLimits } from "../edge-limits.ts";

/** Calls `done` once; `isWhole`: the request is complete, else a limit was reached or the client went away. */
export function drainRest(
  request: IncomingMessage,
  { lingerBytes, lingerMs, lingerWholeMs }: EdgeLimits,
  done: (isWhole: boolean) => void,
): void {
  let bytesLeft = lingerBytes;
  const over = (): void => {
    clearTimeout(still);
    clearTimeout(whole);
    request.off("data", onData).off("end", over).off("close", over);
    request.resume();
    done(request.complete);
  };
  const onData = (chunk: Buffer): void => {
    bytesLeft -= chunk.length;
    if (bytesLeft <= 0) over();
    else still.refresh();
  };
  const still = setTimeout(over, lingerMs);
  const whole = setTimeout(over, lingerWholeMs);
  request.removeAllListeners("data");
  request.on("data", onData).once("end", over).once("close", over);
  request.resume();
}
