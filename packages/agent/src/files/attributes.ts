/** `x-file-attributes`: the extended attributes of a file that is written. */
import { ClocheError, limits } from "@cloche/protocol";
import type { FileAttribute } from "../spawner/index.ts";

/** What a file system stores beside a name and a value, at most. */
const overheadBytes = 20;

/** A JSON object of names and values in base64; undefined: the client does not say. */
export function readAttributes(header: string | string[] | undefined): FileAttribute[] | undefined {
  if (header === undefined) return undefined;
  const attributes = Object.entries(parsed(header)).map(([name, value]) => {
    if (!/^user\.[^\0]+$/.test(name) || Buffer.byteLength(name) > limits.attributeNameBytes)
      throw malformed();
    if (typeof value !== "string" || !isBase64(value)) throw malformed();
    return { name, value: Buffer.from(value, "base64") };
  });
  const bytes = attributes.reduce(
    (sum, { name, value }) => sum + Buffer.byteLength(name) + value.length + overheadBytes,
    0,
  );
  if (bytes > limits.fileAttributesBytes)
    throw new ClocheError(
      "resource_exhausted",
      `x-file-attributes is too large: names, values and ${overheadBytes} bytes for each may be ${limits.fileAttributesBytes} bytes`,
      { resource: "body" },
    );
  return attributes;
}

function parsed(header: string | string[]): object {
  try {
    const value: unknown = JSON.parse(String(header));
    if (typeof value === "object" && value !== null && !Array.isArray(value)) return value;
  } catch {
    // said below
  }
  throw malformed();
}

const isBase64 = (text: string): boolean => text.length % 4 === 0 && /^[A-Za-z0-9+/]*={0,2}$/.test(text);

const malformed = (): ClocheError =>
  new ClocheError(
    "invalid_argument",
    `x-file-attributes must be a JSON object of names that begin with user. (at most ${limits.attributeNameBytes} bytes) and of values in base64`,
  );
