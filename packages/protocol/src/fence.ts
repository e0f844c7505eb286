/**
 * A fence says which of two calls that change a machine is newer. An operation's number is the record's generation when
 * the operation began, so it grows from one operation of a sandbox to the next; its attempt grows with each new owner.
 * In a cluster the header `internalHeaders.operation` carries both as `<number>.<attempt>`, and a host refuses calls
 * older than it has seen.
 */
export interface Fence {
  number: number;
  attempt: number;
}

export const fenceText = ({ number, attempt }: Fence): string => `${number}.${attempt}`;

/** Parses a fence; undefined: not valid. */
export function fenceOf(text: string): Fence | undefined {
  const [, number, attempt] = /^(\d{1,15})\.(\d{1,15})$/.exec(text) ?? [];
  return number === undefined ? undefined : { number: Number(number), attempt: Number(attempt) };
}

export const isOlderFence = (one: Fence, other: Fence): boolean =>
  one.number === other.number ? one.attempt < other.attempt : one.number < other.number;
