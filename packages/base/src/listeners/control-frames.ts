import { constants, type Http2Session } from "node:http2";

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
