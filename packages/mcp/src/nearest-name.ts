/** The known name that was probably meant: another spelling, a few letters or a word away. Undefined: none is near. */
export function nearestName(name: string, known: readonly string[]): string | undefined {
  const word = plain(name.slice(0, 64));
  const ranked = known
    .map((one) => ({ one, far: distance(word, plain(one)) }))
    .sort((left, right) => left.far - right.far);
  const [best] = ranked;
  if (best !== undefined && best.far <= Math.max(1, Math.floor(word.length / 3))) return best.one;
  if (word.length < 3) return undefined;
  const within = known.find((one) => plain(one).includes(word) || word.includes(plain(one)));
  return within ?? known.find((one) => one.includes("_") && one.split("_")[0] === name.split("_")[0]);
}

/** `maxBytes`, `max-bytes` and `MAX_BYTES` are one word. */
const plain = (name: string): string => name.toLowerCase().replace(/[^a-z0-9]/g, "");

/** Levenshtein's: how many letters to insert, remove or replace. */
function distance(left: string, right: string): number {
  let row = Array.from({ length: right.length + 1 }, (_, index) => index);
  for (let i = 1; i <= left.length; i++) {
    const next = [i];
    for (let j = 1; j <= right.length; j++) {
      const replaced = (row[j - 1] ?? 0) + (left[i - 1] === right[j - 1] ? 0 : 1);
      next.push(Math.min(replaced, (row[j] ?? 0) + 1, (next[j - 1] ?? 0) + 1));
    }
    row = next;
  }
  return row[right.length] ?? 0;
}
