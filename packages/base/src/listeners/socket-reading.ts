/**
 * Stops and starts reading a connection whose bytes node's HTTP parser or HTTP/2 session takes from its handle. The
 * connection's own pause() and resume() do nothing for HTTP/2; for HTTP/1.1 a pause() is lost if it comes before the
 * end of a resume() (node:_http_server, onSocketPause).
 */
import type { Socket } from "node:net";

interface Handle {
  reading?: boolean;
  readStop(): void;
  readStart(): void;
}

/** What node keeps of a connection; `_paused`: it waits until its answers are taken. */
type Inside = { _handle?: Handle | null; _paused?: boolean } | undefined;

export function stopReading(socket: Socket | undefined): void {
  const handle = (socket as Inside)?._handle;
  if (!handle) return;
  handle.reading = false;
  handle.readStop();
}

export function startReading(socket: Socket | undefined): void {
  const { _handle: handle, _paused: isPaused } = (socket as Inside) ?? {};
  if (!handle || isPaused === true) return;
  handle.reading = true;
  handle.readStart();
}
