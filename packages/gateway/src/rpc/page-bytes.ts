/**
 * Pages of lists end by bytes too: clients of gRPC take messages of 4 MiB, unless they are told to take more. A page
 * ends before the message with which it could be larger; the token leads to the rest.
 */
import { limits } from "@cloche/protocol";

/** With its tag and its length, at most. */
const withLength = (bytes: number): number => bytes + (bytes < 128 ? 3 : 6);
const numberBytes = 12;

/** Bytes of a message, or of a field, in protobuf: as many or some more. */
export function wireBytes(value: unknown): number {
  switch (typeof value) {
    case "string":
      return value === "" ? 0 : withLength(Buffer.byteLength(value));
    case "number":
      return value === 0 ? 0 : numberBytes;
    case "boolean":
      return value ? 3 : 0;
    case "object":
      break;
    default:
      return 0;
  }
  if (value === null) return 0;
  if (Array.isArray(value)) return value.reduce<number>((sum, one) => sum + wireBytes(one), 0);
  let bytes = 0;
  for (const name in value) {
    const field = (value as Record<string, unknown>)[name];
    bytes += name === "metadata" ? mapBytes(field as Record<string, string>) : wireBytes(field);
  }
  return withLength(bytes);
}

/** Keys are sent too. */
const mapBytes = (map: Record<string, string>): number =>
  Object.entries(map).reduce((sum, [key, value]) => sum + withLength(wireBytes(key) + wireBytes(value)), 0);

/** The first of `messages` that fit into a page, at least one. */
export function fittingPage<Message>(messages: readonly Message[]): Message[] {
  let bytes = 0;
  const end = messages.findIndex((message, at) => (bytes += wireBytes(message)) > limits.pageBytes && at > 0);
  return messages.slice(0, end === -1 ? undefined : end);
}
