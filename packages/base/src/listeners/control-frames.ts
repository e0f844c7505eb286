import { constants, type Http2Session, type ServerHttp2Session } from "node:http2";

/** Cuts off a far end that sends too many pings and changes of settings, because each of them must be answered. */
export function boundControlFrames(
  session: Http2Session,
  perSecond: number,
  end = (): void => session.destroy(undefined, constants.NGHTTP2_ENHANCE_YOUR_CALM),
): void {
  let second = 0;
  let frames = 0;
  const count = (): void => {
    const now = Math.floor(performance.now() / 1_000);
    if (now !== second) {
      second = now;
      frames = 0;
    }
    frames += 1;
    if (frames > perSecond) end();
  };
  session.on("ping", count);
  session.on("remoteSettings", count);
}

const lookMs = 1_000;

/**
 * Cuts off a client that begins too many streams whose head node refuses before there is a request, such as a head that
 * is too large: node tells of none of them, and does not count them as resets. `burst`, then `perSecond`.
 */
export function boundLostStreams(session: ServerHttp2Session, burst: number, perSecond: number): void {
  const beganMs = performance.now();
  let requests = 0;
  session.on("stream", () => (requests += 1));
  const look = setInterval(() => {
    // A client's streams have odd numbers, in order.
    const begun = ((session.state.lastProcStreamID ?? 0) + 1) >> 1;
    const allowed = burst + ((performance.now() - beganMs) / 1_000) * perSecond;
    if (begun - requests > allowed) session.destroy(undefined, constants.NGHTTP2_ENHANCE_YOUR_CALM);
  }, lookMs);
  look.unref();
  session.once("close", () => clearInterval(look));
}
