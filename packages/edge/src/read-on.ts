/**
 * Who answers before it has read the request may end the connection at once. A write then fails while the answer still waits to be read.
 */
import type { Duplex } from "node:stream";

type Done = (error?: Error | null) => void;

/** From here on a write that fails ends nothing: what was sent to us is read to its end. What is written after it goes nowhere. */
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
