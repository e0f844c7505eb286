/** Bytes as text where they are whole UTF-8, apart from a character cut through at either end. Undefined: they are no text. */
export function textOf(bytes: Uint8Array): { text: string; from: number; to: number } | undefined {
  let from = 0;
  while (from < Math.min(3, bytes.length) && isContinuation(bytes[from])) from += 1;
  const to = bytes.length - cutCharacterBytes(bytes);
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes.subarray(from, to));
    // A NUL is valid UTF-8, and a sure sign of a file that nobody reads as text.
    return text.includes("\0") ? undefined : { text, from, to };
  } catch {
    return undefined;
  }
}

const isContinuation = (byte: number | undefined): boolean => byte !== undefined && (byte & 0xc0) === 0x80;

/** How many bytes at the end begin a character that is not all there. */
function cutCharacterBytes(bytes: Uint8Array): number {
  for (let back = 1; back <= Math.min(3, bytes.length); back += 1) {
    const byte = bytes[bytes.length - back] as number;
    if (isContinuation(byte)) continue;
    const needed = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return needed > back ? back : 0;
  }
  return 0;
}
