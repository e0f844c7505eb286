import type { Readable } from "node:stream";

/** Input that ends within this time is sent with the command; longer input is streamed. */
const waitMs = 50;
const wholeBytesMax = 1_048_576;

/**
 * Standard input of a command. Short input that ends at once, as from a file or `echo`, is answered as a whole, which saves a request. Other
 * input is answered as a stream.
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

/** The rest as a stream. Its `return` closes standard input, because a pending read would keep the process alive. */
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
  first.catch(() => undefined); // the reader gets the error
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
