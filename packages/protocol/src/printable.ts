/**
 * Text of sandboxes and callers, made safe for a terminal. Escapes every character that moves the cursor, starts a
 * sequence or turns the direction of writing: C0, DEL, C1, line separators, bidirectional controls.
 */
const unprintable = /[\p{Cc}\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]/gu;
/** The same without line ends and tabs. */
const unprintableInLines =
  /(?![\n\t]|\r\n)[\p{Cc}\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]/gu;
/** What JSON leaves as it is of these. */
const unprintableInJson = /[\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]/gu;

const shortEscapes: Record<string, string> = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

const hex = (character: string, digits: number): string =>
  character.charCodeAt(0).toString(16).padStart(digits, "0");

const escaped = (character: string): string =>
  shortEscapes[character] ?? (character < "\u0100" ? `\\x${hex(character, 2)}` : `\\u${hex(character, 4)}`);

/** One line: a line end is `\n`, ESC is `\x1b`. */
export const printable = (text: string): string => text.replaceAll(unprintable, escaped);

/** Several lines: line ends and tabs stay. */
export const printableLines = (text: string): string => text.replaceAll(unprintableInLines, escaped);

/** JSON text of the same value, without any of these characters. */
export const printableJson = (json: string): string =>
  json.replaceAll(unprintableInJson, (character) => `\\u${hex(character, 4)}`);
