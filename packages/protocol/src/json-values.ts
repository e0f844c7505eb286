import { ClocheError } from "./errors.ts";
import { limits } from "./limits.ts";

const quote = 0x22;
const backslash = 0x5c;
const comma = 0x2c;
const bracket = 0x5b;
const brace = 0x7b;

/**
 * Throws `resource_exhausted` for JSON with more than `most` values. Call it before parsing JSON of a caller: parsing
 * stops the process for every team, and a megabyte of empty objects takes thirty times as long as a megabyte of text.
 */
export function boundJsonValues(body: Uint8Array, most: number = limits.jsonValues): void {
  if (hasMoreValues(body, most))
    throw new ClocheError("resource_exhausted", `the JSON has more than ${most} values; send fewer at once`, {
      resource: "body",
    });
}

/** Counts commas and opening brackets outside of texts: at most as many as there are values. */
function hasMoreValues(body: Uint8Array, most: number): boolean {
  // Each value has at least two bytes with its separator.
  if (body.length < most) return false;
  let values = 1;
  for (let at = 0; at < body.length; at += 1) {
    const byte = body[at];
    if (byte === quote) at = endOfText(body, at);
    else if ((byte === comma || byte === bracket || byte === brace) && (values += 1) > most) return true;
  }
  return false;
}

/** The quote that ends the text which begins at `start`; the end of the body where none does. */
function endOfText(body: Uint8Array, start: number): number {
  let from = start + 1;
  for (;;) {
    const end = body.indexOf(quote, from);
    if (end === -1) return body.length;
    let escapes = 0;
    while (body[end - 1 - escapes] === backslash && end - 1 - escapes > start) escapes += 1;
    if (escapes % 2 === 0) return end;
    from = end + 1;
  }
}
