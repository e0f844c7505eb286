/** The known name that was probably meant; undefined: none is near. `mistakesMax`: how many letters may be wrong. */
export function nearestName(
  name: string,
  known: Iterable<string>,
  mistakesMax: number = Math.min(4, Math.max(1, Math.floor(name.length / 3))),
): string | undefined {
  let nearest: string | undefined;
  let least = mistakesMax + 1;
  for (const one of known) {
    if (Math.abs(one.length - name.length) >= least) continue;
    const mistakes = distance(name.toLowerCase(), one.toLowerCase());
    if (mistakes < least) [nearest, least] = [one, mistakes];
  }
  return nearest;
}

/** How many letters were left out, added, replaced, or swapped with their neighbour. */
function distance(a: string, b: string): number {
  let before: number[] = [];
  let last = Array.from({ length: b.length + 1 }, (_, index) => index);
  for (let i = 1; i <= a.length; i += 1) {
    const row = [i];
    for (let j = 1; j <= b.length; j += 1) {
      const same = a[i - 1] === b[j - 1] ? 0 : 1;
      row[j] = Math.min(at(last, j) + 1, at(row, j - 1) + 1, at(last, j - 1) + same);
      const isSwap = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1];
      if (isSwap) row[j] = Math.min(at(row, j), at(before, j - 2) + 1);
    }
    [before, last] = [last, row];
  }
  return at(last, b.length);
}

const at = (row: readonly number[], index: number): number => row[index] ?? Number.POSITIVE_INFINITY;
