/**
 * Replaces every `from` in a text by `to`; `places` says how often it was there.
 *
 * A model sees and sends line ends as LF. They fit those of a file with CRLF, and what is put there gets the line ends of what it replaces,
 * or those of most of the file. A `from` with CRLF that is in the text is taken literally, and so is its `to`.
 */
export function editText(text: string, from: string, to: string): { text: string; places: number } {
  for (const [wanted, replacement] of readings(text, from, to)) {
    const parts = text.split(wanted);
    if (parts.length > 1) return { text: parts.join(replacement), places: parts.length - 1 };
  }
  return { text, places: 0 };
}

/** What may be meant, the first that is in the text counts. */
function readings(text: string, from: string, to: string): [string, string][] {
  const given: [string, string] = [from, to];
  if (from.includes("\r\n")) return [given, [asLf(from), asLf(to)]];
  if (!text.includes("\r\n")) return [given];
  if (from.includes("\n")) return [[asCrlf(from), asCrlf(to)], given];
  const isMostlyCrlf = countOf(text, "\r\n") * 2 > countOf(text, "\n");
  return [[from, isMostlyCrlf ? asCrlf(to) : to]];
}

const countOf = (text: string, part: string): number => text.split(part).length - 1;
const asLf = (text: string): string => text.replaceAll("\r\n", "\n");
const asCrlf = (text: string): string => asLf(text).replaceAll("\n", "\r\n");
