/**
 * How many connections sandboxes may have. The kernel follows each in a table, which belongs to the whole computer.
 */
import { readFile } from "node:fs/promises";

export interface ConnectionShares {
  /** All sandboxes together: three quarters of the table, so that the host keeps one. */
  readonly all: number;
  /** Those of one team: a quarter of that. */
  readonly ofTeam: number;
}

export function connectionShares(tableSize: number): ConnectionShares {
  const all = Math.floor((tableSize * 3) / 4);
  return { all, ofTeam: Math.floor(all / 4) };
}

/** Of a kernel that has not loaded its connection tracking yet, on a computer with 4 GB or more. */
const usualTableSize = 262_144;

/** `net.netfilter.nf_conntrack_max`. */
export async function connectionTableSize(): Promise<number> {
  const size = Number(await readFile("/proc/sys/net/netfilter/nf_conntrack_max", "utf8").catch(() => ""));
  return size > 0 ? size : usualTableSize;
}
