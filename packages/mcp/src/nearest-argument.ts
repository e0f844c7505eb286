import { nearestName } from "@cloche/protocol";

/** The known argument that was probably meant: another spelling, a few letters or a word away. Undefined: none is near. */
export function nearestArgument(name: string, known: readonly string[]): string | undefined {
  const normalized = plain(name.slice(0, 64));
  const byPlain = new Map(known.map((one) => [plain(one), one]));
  const near = nearestName(normalized, byPlain.keys(), Math.max(1, Math.floor(normalized.length / 3)));
  if (near !== undefined) return byPlain.get(near);
  if (normalized.length < 3) return undefined;
  const within = known.find((one) => plain(one).includes(normalized) || normalized.includes(plain(one)));
  return within ?? known.find((one) => one.includes("_") && one.split("_")[0] === name.split("_")[0]);
}

/** `maxBytes`, `max-bytes` and `MAX_BYTES` are one word. */
const plain = (name: string): string => name.toLowerCase().replace(/[^a-z0-9]/g, "");
