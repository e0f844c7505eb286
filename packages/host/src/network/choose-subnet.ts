// Which /16 an instance has. One that was set is taken or refused; else the instance keeps the one it had, so that machines
// that run or come back find it, and a new one gets the first that nobody on this machine uses. Pure.
import { ClocheError } from "@cloche/protocol";
import { overlaps } from "./address.ts";

/** An address range that is in use, and by whom. */
export interface TakenRange {
  readonly range: string;
  /** For people: "on eth0". */
  readonly where: string;
}

export interface SubnetQuestion {
  /** CLOCHE_SUBNET; "": any. */
  readonly asked: string;
  /** Of this instance's router, where that is there: its machines may be running. */
  readonly present: string | undefined;
  /** That this home had the last time. */
  readonly remembered: string | undefined;
  /** Without what is this instance's own. */
  readonly taken: readonly TakenRange[];
}

/** 10.231 to 10.254, then 10.200 to 10.230. */
const CANDIDATES = [...numbers(231, 254), ...numbers(200, 230)].map((second) => `10.${second}.0.0/16`);

/** invalid_argument where the one that was asked for is in use, or none is free. */
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
  const free = [...known, ...CANDIDATES].find((subnet) => userOf(subnet) === undefined);
  if (free !== undefined) return free;
  throw new ClocheError(
    "invalid_argument",
    "CLOCHE_SUBNET: each /16 from 10.200.0.0/16 to 10.254.0.0/16 is in use on this machine; set another IPv4 /16",
  );
}

function numbers(first: number, last: number): number[] {
  return Array.from({ length: last - first + 1 }, (_, index) => first + index);
}
