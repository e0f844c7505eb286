import type { Readable } from "node:stream";

/** What ends within this goes along with the command; what stays open is sent as it comes. */
const waitMs = 50;
const wholeBytesMax = 1_048_576;

/**
 * Standard input of a command: whole where it is short and ends at once, as a file's or an `echo`'s does, which spares a
 * request; else what has come and all that comes.
 */
export async function standardInput(stream: Readable): Promise<Uint8Array | AsyncIterable<Uint8Array>> {
  const pieces = stream[Symbol.asyncIterator]() as AsyncIterator<Uint8Array>;
  const come: Uint8Array[] = [];
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<undefined>((resolve) => {
    timer = setTimeout(() => resolve(undefined), waitMs);
  });
  let next = pieces.next();
  try {
    for (let bytes = 0; bytes <= wholeBytesMax; ) {
      const read = await Promise.race([next, late]);
      if (read === undefined) break;
      if (read.done === true) return Buffer.concat(come);
      come.push(read.value);
      bytes += read.value.length;
      next = pieces.next();
    }
  } finally {
    clearTimeout(timer);
  }
  return rest(stream, come, next, pieces);
}

/** Its `return` closes the stream: a read that is under way would keep the process alive. */
function rest(
  stream: Readable,
  come: Uint8Array[],
  first: Promise<IteratorResult<Uint8Array>>,
  pieces: AsyncIterator<Uint8Array>,
): AsyncIterable<Uint8Array> {
  const queue = come.map((value) => Promise.resolve({ done: false as const, value })) as Promise<
    IteratorResult<Uint8Array>
  >[];
  queue.push(first);
  first.catch(() => undefined); // told to who asks for it
  return {
    [Symbol.asyncIterator]: () => ({
      next: () => queue.shift() ?? pieces.next(),
      return: () => {
        stream.destroy();
        return Promise.resolve({ done: true, value: undefined });
      },
    }),
  };
}
