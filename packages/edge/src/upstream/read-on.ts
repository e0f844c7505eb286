/**
 * A far end that answers before it has read the request may end the connection at once. A write then fails while the
 * answer has not been read yet.
 */
import type { Duplex } from "node:stream";

type Done = (error?: Error | null) => void;

/** From now on a failed write does not end the socket, so the answer is read to its end. Later writes are discarded. */
export function readOn(socket: Duplex): void {
  let failed = false;
  const noted =
    (done: Done): Done =>
    (error) => {
      failed ||= error instanceof Error;
      done();
    };
  const write = socket._write.bind(socket);
  const writev = socket._writev?.bind(socket);
  const final = socket._final?.bind(socket);
  socket._write = (chunk, encoding, done) => (failed ? done() : write(chunk, encoding, noted(done)));
  if (writev) socket._writev = (chunks, done) => (failed ? done() : writev(chunks, noted(done)));
  if (final) socket._final = (done) => (failed ? done() : final(noted(done)));
}
