import { ClocheError, limits } from "@cloche/protocol";

/**
 * The bytes of a key (spec/contract.md, store): 1 to 512 bytes of UTF-8; `.` and `..` are refused, because clients normalise them away.
 * `field` is the name of the key in errors.
 */
export function keyBytes(key: string, field: string): Buffer {
  if (key === "") throw new ClocheError("invalid_argument", `${field} must not be empty`);
  if (key === "." || key === "..")
    throw new ClocheError("invalid_argument", `${field} must not be "." or ".."`);
  if (!key.isWellFormed()) throw new ClocheError("invalid_argument", `${field} is not valid UTF-8`);
  const bytes = Buffer.from(key, "utf8");
  if (bytes.length > limits.storeKeyBytes) {
    throw new ClocheError(
      "resource_exhausted",
      `${field} has ${bytes.length} bytes; at most ${limits.storeKeyBytes} are allowed`,
      { resource: "body" },
    );
  }
  return bytes;
}

/** The key in a path: everything after `/v1/store/`, percent-decoded once. */
export function keyOfPath(rest: string): Buffer {
  let key: string;
  try {
    key = decodeURIComponent(rest);
  } catch {
    throw new ClocheError("invalid_argument", "the key in the path is not percent-encoded UTF-8");
  }
  return keyBytes(key, "the key");
}

/** The smallest byte string greater than all that start with `prefix`; undefined for an empty prefix. UTF-8 has no byte 0xff. */
export function afterPrefix(prefix: Buffer): Buffer | undefined {
  if (prefix.length === 0) return undefined;
  const after = Buffer.from(prefix);
  after[after.length - 1] = (after.at(-1) ?? 0) + 1;
  return after;
}
