/**
 * Chooses the /16 of an instance. A configured subnet is taken or refused. Otherwise an instance keeps its subnet, which running and
 * resumed machines need, and a new instance gets the first that is not in use on this computer. Pure.
 */
import { ClocheError } from "@cloche/protocol";
import { overlaps } from "./address.ts";

/** An address range in use, and its user. */
export interface TakenRange {
  readonly range: string;
  /** For people: "on eth0". */
  readonly where: string;
}

export interface SubnetQuestion {
  /** CLOCHE_SUBNET; "": any. */
  readonly asked: string;
  /** The subnet of this instance's router, if it exists: machines may be running in it. */
  readonly present: string | undefined;
  /** The subnet that this home used last. */
  readonly remembered: string | undefined;
  /** Ranges in use, without this instance's own. */
  readonly taken: readonly TakenRange[];
}

/** 10.231 to 10.254, then 10.200 to 10.230. */
const candidates = [...numbers(231, 254), ...numbers(200, 230)].map((second) => `10.${second}.0.0/16`);

/** Throws invalid_argument if the configured subnet is in use, or none is free. */
export function chooseSubnet({ asked, present, remembered, taken }: SubnetQuestion): string {
  const userOf = (subnet: string) => taken.find(({ range }) => overlaps(range, subnet));
  if (asked !== "") {
    const user = present === asked ? undefined : userOf(asked);
    if (user === undefined) return asked;
    throw new ClocheError(
      "invalid_argument",
      `CLOCHE_SUBNET: ${asked} is in use on this machine (${user.range} ${user.where}); set another IPv4 /16, or none to have a free one chosen`,
    );
  }
  if (present !== undefined) return present;
  const known = remembered === undefined ? [] : [remembered];
  const free = [...known, ...candidates].find((subnet) => userOf(subnet) === undefined);
  if (free !== undefined) return free;
  throw new ClocheError(
    "invalid_argument",
    "CLOCHE_SUBNET: each /16 from 10.200.0.0/16 to 10.254.0.0/16 is in use on this machine; set another IPv4 /16",
  );
}

function numbers(first: number, last: number): number[] {
  return Array.from({ length: last - first + 1 }, (_, index) => first + index);
}
