import { ClocheError, limits } from "@cloche/protocol";
import type { JsonObject } from "../http/fields.ts";

/** The form of output in answers: text, or bytes in base64. */
export type Output = "text" | "base64";

/** `output_encoding` of an exec. */
export function readOutput(body: JsonObject): Output {
  const encoding = body["output_encoding"];
  if (encoding === undefined || encoding === null || encoding === "utf-8") return "text";
  if (encoding === "base64") return encoding;
  throw new ClocheError("invalid_argument", 'output_encoding must be "utf-8" or "base64"');
}

/** `stdin` or `stdin_base64`; undefined: neither. 413 beyond 16 MiB. */
export const readInput = (body: JsonObject): Buffer | undefined =>
  decodeBytes(body, "stdin", limits.execStdinBytes);

/**
 * A field that is given as text (NUL allowed, since programs may read it) or, under its name with `_base64`, as bytes. Undefined:
 * neither is given. Throws with the name of the field; 413 for more than `maxBytes`.
 */
export function decodeBytes(body: JsonObject, name: string, maxBytes: number): Buffer | undefined {
  const [text, encoded] = [body[name] ?? undefined, body[`${name}_base64`] ?? undefined];
  if (text !== undefined && typeof text !== "string") {
    throw new ClocheError("invalid_argument", `${name} must be a string`);
  }
  if (encoded !== undefined && typeof encoded !== "string") {
    throw new ClocheError("invalid_argument", `${name}_base64 must be a string`);
  }
  if (encoded === undefined)
    return text === undefined ? undefined : bounded(name, Buffer.from(text), maxBytes);
  if (text !== undefined) {
    throw new ClocheError("invalid_argument", `${name} and ${name}_base64 cannot both be given`);
  }
  const bytes = Buffer.from(encoded, "base64");
  // Node skips invalid base64 characters, so valid input is input that encodes back to the same text.
  if (bytes.toString("base64") !== encoded) {
    throw new ClocheError(
      "invalid_argument",
      `${name}_base64 must be base64 with its padding (RFC 4648, section 4)`,
    );
  }
  return bounded(`${name}_base64`, bytes, maxBytes);
}

function bounded(name: string, bytes: Buffer, maxBytes: number): Buffer {
  if (bytes.length <= maxBytes) return bytes;
  const instead = name.startsWith("stdin") ? "; write a file and read that" : "; send it in pieces";
  throw new ClocheError("resource_exhausted", `${name} must not be larger than ${maxBytes} bytes${instead}`, {
    resource: "body",
  });
}
