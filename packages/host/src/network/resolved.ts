/**
 * Addresses that a sandbox with an allow-list may reach because an allowed name resolved to them, and their elements of the router's set. An element
 * lasts as long as the answer is valid; the kernel expires it. Pure.
 */
import { type AllowedDomain, matchesDomain, type PortRange } from "@cloche/protocol";
import type { Element, ElementChange } from "../sys/native.ts";
import { joined } from "./egress.ts";
import { slotInterface } from "./names.ts";

export interface ResolvedAddress {
  /** Disjoint. */
  readonly ports: readonly PortRange[];
  readonly expiresAtMs: number;
  /** Names that resolved to it; none after a restart of the service. */
  readonly names: readonly string[];
}

/** By address. */
export type Resolved = ReadonlyMap<string, ResolvedAddress>;

export const nothingResolved: Resolved = new Map();
/** Most addresses of one sandbox; beyond it the one that expires first is dropped. */
export const resolvedMax = 1_024;
const namesMax = 8;
/** Programs use an address for a while after the look-up, but no address stays allowed for ever. */
const holdMinMs = 60_000;
const holdMaxMs = 3_600_000;

/** Adds an answer for `name`: its addresses may be reached on the ports of the domains that allow the name. */
export function learn(
  before: Resolved,
  domains: readonly AllowedDomain[],
  name: string,
  answer: readonly { address: string; ttlSeconds: number }[],
  nowMs: number,
): Resolved {
  const ports = portsOf(domains, [name]);
  const next = new Map([...before].filter(([, { expiresAtMs }]) => expiresAtMs > nowMs));
  for (const { address, ttlSeconds } of answer) {
    const known = next.get(address);
    const holdMs = Math.min(Math.max(ttlSeconds * 1_000, holdMinMs), holdMaxMs);
    const isFresh = known?.names.includes(name) === true && known.expiresAtMs >= nowMs + holdMs / 2;
    if (isFresh) continue;
    next.set(address, {
      ports: joined([...(known?.ports ?? []), ...ports]),
      expiresAtMs: Math.max(nowMs + holdMs, known?.expiresAtMs ?? 0),
      names: [...new Set([name, ...(known?.names ?? [])])].slice(0, namesMax),
    });
  }
  const surplus = next.size - resolvedMax;
  const soonest = surplus <= 0 ? [] : [...next].sort(([, a], [, b]) => a.expiresAtMs - b.expiresAtMs);
  for (const [address] of soonest.slice(0, Math.max(0, surplus))) next.delete(address);
  return next;
}

/** What is left of it under other domains. */
export function retain(before: Resolved, domains: readonly AllowedDomain[], nowMs: number): Resolved {
  const next = new Map<string, ResolvedAddress>();
  for (const [address, known] of before) {
    const ports = portsOf(domains, known.names);
    if (ports.length > 0 && known.expiresAtMs > nowMs) next.set(address, { ...known, ports });
  }
  return next;
}

/** The changes of the kernel's elements from `before` to `after`. */
export function resolvedChanges(
  slot: number,
  before: Resolved,
  after: Resolved,
  nowMs: number,
): ElementChange[] {
  const changes: ElementChange[] = [];
  const element = (address: string, ports: PortRange): Element => ({
    set: "resolved",
    interface: slotInterface(slot),
    address,
    ports,
  });
  const changed = (one: Resolved, other: Resolved) =>
    [...one].filter(([address, known]) => other.get(address) !== known);
  // Add each element before deleting it: it may have expired, and the kernel refuses to delete a missing element.
  for (const [address, { ports }] of changed(before, after))
    for (const range of ports)
      for (const verb of ["add", "delete"] as const) changes.push({ verb, ...element(address, range) });
  for (const [address, { ports, expiresAtMs }] of changed(after, before)) {
    const timeoutSeconds = Math.max(1, Math.ceil((expiresAtMs - nowMs) / 1_000));
    for (const range of ports) changes.push({ verb: "add", ...element(address, range), timeoutSeconds });
  }
  return changes;
}

/** How many addresses are new in `after`, or have another time or other ports. */
export const learned = (before: Resolved, after: Resolved): number =>
  [...after].filter(([address, known]) => before.get(address) !== known).length;

const portsOf = (domains: readonly AllowedDomain[], names: readonly string[]): PortRange[] =>
  joined(
    domains
      .filter((one) => names.some((name) => matchesDomain(one, name)))
      .map(({ ports: [first, last] }): [number, number] => [first, last]),
  );
