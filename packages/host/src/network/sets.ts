// Reads the router's sets back from `nft -j`: what slots have there after a restart, and what was denied. Pure.
import { NO_ELEMENTS, type SlotElements } from "./egress.ts";

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
    if (slot !== undefined) slots.set(slot, change(slots.get(slot) ?? NO_ELEMENTS));
  };
  for (const set of setsOf(json)) {
    for (const element of set.elem ?? []) {
      if (set.name === "egress") update((element as [string])[0], (known) => ({ ...known, hasEgress: true }));
      if (set.name === "resolving") update(element, (known) => ({ ...known, hasResolving: true }));
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
