/** Reads the router's sets from `nft -j`: the elements of slots after a restart, and denials. Pure. */
import type { PortRange } from "@cloche/protocol";
import { noElements, type SlotElements } from "./egress.ts";
import { nothingResolved, type Resolved } from "./resolved.ts";
import { refusalsKeptSeconds } from "./rules.ts";

export interface Denial {
  readonly packets: number;
  readonly bytes: number;
}

interface NftSet {
  readonly name: string;
  readonly elem?: readonly unknown[];
}

/** From `nft -j list table`: the elements of every slot that has any in `egress`, `resolving`, `allowed` or `sources`. */
export function readElements(json: unknown): Map<number, SlotElements> {
  const slots = new Map<number, SlotElements>();
  const update = (name: unknown, change: (known: SlotElements) => SlotElements) => {
    const slot = slotOfInterface(name);
    if (slot !== undefined) slots.set(slot, change(slots.get(slot) ?? noElements));
  };
  for (const set of setsOf(json)) {
    for (const element of set.elem ?? []) {
      if (set.name === "egress") update((element as [string])[0], (known) => ({ ...known, hasEgress: true }));
      if (set.name === "resolving") update(element, (known) => ({ ...known, hasResolving: true }));
      if (set.name === "opened") {
        const [name, mark] = concatOf(element);
        update(name, (known) => ({ ...known, generation: Number(mark) }));
      }
      if (set.name === "sources") update(concatOf(element)[0], (known) => known);
      if (set.name === "allowed") {
        const [name, ...rest] = concatOf(element);
        const text = rest.map(renderPart).join(" . ");
        update(name, (known) => ({ ...known, allowed: [...known.allowed, text] }));
      }
    }
  }
  return slots;
}

/** From `nft -j list map … teams`: the mark of each slot's team. */
export function readTeams(json: unknown): Map<number, number> {
  const teams = new Map<number, number>();
  for (const { name, elem } of setsOf(json))
    for (const element of name === "teams" ? (elem ?? []) : []) {
      const [interfaceName, mark] = element as [string, number];
      const slot = slotOfInterface(interfaceName);
      if (slot !== undefined) teams.set(slot, Number(mark));
    }
  return teams;
}

/** From `nft -j list table`: addresses resolved by an earlier service, and until when they are allowed. */
export function readResolved(json: unknown, nowMs: number): Map<number, Resolved> {
  const slots = new Map<number, Resolved>();
  for (const { slot, rest, expiresSeconds } of timedElements(json, "resolved")) {
    const [address, port] = rest;
    const known = slots.get(slot) ?? nothingResolved;
    const ports = [...(known.get(String(address))?.ports ?? []), portsOf(port)];
    const one = { ports, expiresAtMs: nowMs + expiresSeconds * 1_000, names: [] };
    slots.set(slot, new Map([...known, [String(address), one]]));
  }
  return slots;
}

export interface Refusal {
  readonly address: string;
  readonly protocol: string;
  readonly port: number;
  readonly packets: number;
  readonly lastAtMs: number;
}

/** From `nft -j list set … refusals`: the latest refusals of each slot. */
export function readRefusals(json: unknown, nowMs: number): Map<number, Refusal[]> {
  const slots = new Map<number, Refusal[]>();
  for (const { slot, rest, expiresSeconds, packets } of timedElements(json, "refusals")) {
    const [address, protocol, port] = rest;
    const lastAtMs = nowMs - (refusalsKeptSeconds - expiresSeconds) * 1_000;
    const one = {
      address: String(address),
      protocol: String(protocol),
      port: Number(port),
      packets,
      lastAtMs,
    };
    slots.set(slot, [...(slots.get(slot) ?? []), one]);
  }
  return slots;
}

/** From `nft -j list set … denied`. */
export function readDenials(json: unknown): Map<number, Denial> {
  const denials = new Map<number, Denial>();
  for (const set of setsOf(json))
    for (const element of set.elem ?? []) {
      const { elem } = element as { elem?: { val: unknown; counter?: Denial } };
      const slot = slotOfInterface(elem?.val);
      if (slot !== undefined && elem?.counter)
        denials.set(slot, { packets: elem.counter.packets, bytes: elem.counter.bytes });
    }
  return denials;
}

function setsOf(json: unknown): NftSet[] {
  const { nftables } = json as { nftables: { set?: NftSet; map?: NftSet }[] };
  return nftables.flatMap((object) => object.set ?? object.map ?? []);
}

interface TimedElement {
  readonly slot: number;
  /** The parts after the interface. */
  readonly rest: readonly unknown[];
  readonly expiresSeconds: number;
  readonly packets: number;
}

function timedElements(json: unknown, name: string): TimedElement[] {
  return setsOf(json)
    .filter((set) => set.name === name)
    .flatMap((set) => set.elem ?? [])
    .flatMap((element) => {
      const { elem } = element as { elem?: { val: unknown; expires?: number; counter?: Denial } };
      const [interfaceName, ...rest] = concatOf(elem?.val ?? {});
      const slot = slotOfInterface(interfaceName);
      if (slot === undefined) return [];
      return [{ slot, rest, expiresSeconds: elem?.expires ?? 0, packets: elem?.counter?.packets ?? 0 }];
    });
}

function portsOf(port: unknown): PortRange {
  const { range } = port as { range?: [number, number] };
  return range ?? [Number(port), Number(port)];
}

function slotOfInterface(name: unknown): number | undefined {
  const digits = typeof name === "string" ? /^s(\d{1,5})$/.exec(name)?.[1] : undefined;
  return digits === undefined ? undefined : Number(digits);
}

function concatOf(element: unknown): readonly unknown[] {
  return (element as { concat?: readonly unknown[] }).concat ?? [];
}

function renderPart(part: unknown): string {
  const { prefix, range } = part as { prefix?: { addr: string; len: number }; range?: readonly unknown[] };
  if (prefix) return `${prefix.addr}/${prefix.len}`;
  if (range) return range.join("-");
  return String(part);
}
