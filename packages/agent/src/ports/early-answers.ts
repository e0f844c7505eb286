/**
 * A server may answer before it has read the request, and close the connection. A write then fails while the answer is still unread.
 */
import type { Socket } from "node:net";

type Done = (error?: Error | null) => void;

/**
 * From now on a failed write does not end the socket: received data is read to its end first. Later writes are dropped.
 */
export function readToTheEnd(socket: Socket): void {
  let failed = false;
  const noted = (done: Done): Done => {
    return (error) => {
      failed ||= error instanceof Error;
      done();
    };
  };
  const write = socket._write.bind(socket);
  const writev = socket._writev?.bind(socket);
  const final = socket._final.bind(socket);
  socket._write = (chunk, encoding, done) => (failed ? done() : write(chunk, encoding, noted(done)));
  if (writev) socket._writev = (chunks, done) => (failed ? done() : writev(chunks, noted(done)));
  socket._final = (done) => (failed ? done() : final(noted(done)));
}
