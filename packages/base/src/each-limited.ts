/** Runs `body` for every item in order, at most `atOnce` at a time. Rejects with the first failure; others go on. */
export async function eachLimited<T>(
  items: readonly T[],
  body: (item: T) => Promise<void>,
  atOnce = 8,
): Promise<void> {
  const rest = [...items];
  const worker = async (): Promise<void> => {
    for (let item = rest.shift(); item !== undefined; item = rest.shift()) await body(item);
  };
  await Promise.all(Array.from({ length: atOnce }, worker));
}
