/**
 * The rest of a request that was answered before it was whole. Most clients send all of their body before they read, and an answer is
 * lost to them when what they send is met by a reset. So the rest is read and thrown away, within bounds of bytes, of time without a
 * byte, and of time.
 */
import type { IncomingMessage } from "node:http";
import type { EdgeLimits } from "./edge-limits.ts";

/** `done` is called once: `isWhole` when the request came to its end, else when it is given up or its client went away. */
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
