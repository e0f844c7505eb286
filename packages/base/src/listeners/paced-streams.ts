import type { Http2Stream } from "node:http2";
import type { Socket } from "node:net";
import { beganStream } from "./other-frames.ts";
import { isSmall, SmallPieces } from "./small-pieces.ts";
import { startReading, stopReading } from "./socket-reading.ts";
import type { PieceRate } from "./piece-rate.ts";

/** Joins small DATA frames of an HTTP/2 stream, and reads its connection at a bounded pace. Call it before anything is read. */
export function paceStream(stream: Http2Stream, socket: Socket | undefined, work?: PieceRate): void {
  const { session } = stream;
  const gotBody = beganStream(stream);
  // A session that is over throws when its socket is looked at (ERR_HTTP2_SOCKET_UNBOUND).
  const openSocket = (): Socket | undefined => (session?.destroyed === true ? undefined : socket);
  const push = stream.push.bind(stream);
  const read = stream._read.bind(stream);
  const pieces = new SmallPieces(
    stream,
    push,
    (hasRoom) => {
      startReading(openSocket());
      if (hasRoom) read(0);
    },
    work,
  );
  stream.push = (piece: unknown, encoding?: BufferEncoding): boolean => {
    if (piece instanceof Uint8Array) gotBody(piece.length);
    if (!isSmall(piece)) {
      pieces.flush();
      return push(piece, encoding);
    }
    const goesOn = pieces.add(piece);
    if (pieces.isHeld) stopReading(openSocket());
    return goesOn;
  };
  stream._read = (size) => {
    if (!pieces.isHeld) read(size);
  };
}
