/**
 * Which of two calls that change a machine is the later. An operation's number is the generation that its record had when the
 * operation began, so it grows from one operation of a sandbox to the next; its attempt grows with each owner. In a cluster the
 * header `internalHeaders.operation` carries both as `<number>.<attempt>`, and a host refuses what is older than it has seen.
 */
export interface Fence {
  number: number;
  attempt: number;
}

export const fenceText = ({ number, attempt }: Fence): string => `${number}.${attempt}`;

/** Undefined: it is none. */
export function fenceOf(text: string): Fence | undefined {
  const [, number, attempt] = /^(\d{1,15})\.(\d{1,15})$/.exec(text) ?? [];
  return number === undefined ? undefined : { number: Number(number), attempt: Number(attempt) };
}

export const isOlderFence = (one: Fence, other: Fence): boolean =>
  one.number === other.number ? one.attempt < other.attempt : one.number < other.number;
