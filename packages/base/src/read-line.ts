import type { Duplex } from "node:stream";

/**
 * Reads the first line of a socket, without its end. Puts bytes after the line back and pauses the socket. Throws when
 * the socket ends first, when the line is longer than `bytesMax`, or when `signal` aborts.
 */
export function readLine(socket: Duplex, bytesMax: number, signal: AbortSignal): Promise<string> {
  return new Promise((resolve, reject) => {
    let read = Buffer.alloc(0);
    const end = (): void => {
      socket.off("data", onData);
      socket.off("end", onClose);
      socket.off("close", onClose);
      socket.off("error", onClose);
      signal.removeEventListener("abort", onClose);
      socket.pause();
    };
    const onClose = (): void => {
      end();
      reject(new Error("no line came", { cause: signal.reason }));
    };
    const onData = (chunk: Buffer): void => {
      read = Buffer.concat([read, chunk]);
      const at = read.indexOf(0x0a);
      if (at === -1 && read.length < bytesMax) return;
      end();
      if (at === -1 || at >= bytesMax) return reject(new Error("the line is too long"));
      if (at + 1 < read.length) socket.unshift(read.subarray(at + 1));
      resolve(read.subarray(0, at).toString("latin1"));
    };
    socket.on("data", onData);
    socket.on("end", onClose);
    socket.on("close", onClose);
    socket.on("error", onClose);
    signal.addEventListener("abort", onClose, { once: true });
    if (signal.aborted) onClose();
  });
}
