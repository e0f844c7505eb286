/** Does `body` with every item, at most `atOnce` at a time, in their order. Rejects with the first failure; what has begun then goes on. */
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
