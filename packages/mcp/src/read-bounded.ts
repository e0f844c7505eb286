/** Up to `maxBytes` of a stream; the rest is not fetched. `more`: there was more. */
export async function readBounded(
  stream: ReadableStream<Uint8Array>,
  maxBytes: number,
): Promise<{ bytes: Uint8Array; more: boolean }> {
  const pieces: Uint8Array[] = [];
  let size = 0;
  // Leaving the loop cancels the stream.
  for await (const piece of stream) {
    pieces.push(piece);
    size += piece.length;
    if (size > maxBytes) break;
  }
  const whole = Buffer.concat(pieces);
  return { bytes: whole.subarray(0, maxBytes), more: whole.length > maxBytes };
}
