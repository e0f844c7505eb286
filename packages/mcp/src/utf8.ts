/** Bytes as text, if they are UTF-8 apart from a character that is cut at either end. Undefined: not text. */
export function textOf(bytes: Uint8Array): { text: string; from: number; to: number } | undefined {
  let from = 0;
  while (from < Math.min(3, bytes.length) && isContinuation(bytes[from])) from += 1;
  const to = bytes.length - cutCharacterBytes(bytes);
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes.subarray(from, to));
    // A NUL is valid UTF-8, but shows that a file is not text.
    return text.includes("\0") ? undefined : { text, from, to };
  } catch {
    return undefined;
  }
}

const isContinuation = (byte: number | undefined): boolean => byte !== undefined && (byte & 0xc0) === 0x80;

/** Number of bytes at the end that begin an incomplete character. */
function cutCharacterBytes(bytes: Uint8Array): number {
  for (let back = 1; back <= Math.min(3, bytes.length); back += 1) {
    const byte = bytes[bytes.length - back] as number;
    if (isContinuation(byte)) continue;
    const needed = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return needed > back ? back : 0;
  }
  return 0;
}
