/**
 * What a sandbox may reach: its mode, and the nft set elements that enforce it. The rules (rules.ts) never change. A change of mode
 * is one transaction on elements and takes effect at once, also for open connections. Pure.
 */
import {
  type AllowedDomain,
  ClocheError,
  type Egress,
  type PortRange,
  parseAllowedCidr,
  parseAllowedDomain,
} from "@cloche/protocol";
import type { Element } from "../sys/native.ts";
import { toRange } from "./address.ts";
import { slotInterface } from "./names.ts";
import { routerTable } from "./rules.ts";

export interface EgressRule {
  /** IPv4 range or address. Private and special ranges stay closed in any case. */
  readonly cidr: string;
  readonly protocol: "tcp" | "udp";
  /** First and last port. */
  readonly ports: PortRange;
}

/**
 * open: every public address. none: no address and no name. list: the addresses of `allow`, the names of `domains`, and the addresses
 * that these resolve to.
 */
export type EgressPolicy =
  | { readonly mode: "open" }
  | { readonly mode: "none" }
  | {
      readonly mode: "list";
      readonly allow: readonly EgressRule[];
      readonly domains: readonly AllowedDomain[];
    };

/** The policy of the public form; undefined means open. Throws invalid_argument, which names the unreadable entry. */
export function policyOf(egress: Egress | undefined): EgressPolicy {
  if (egress === undefined || egress.mode === "open") return { mode: "open" };
  if (egress.mode === "none") return { mode: "none" };
  const read = <T>(field: string, texts: readonly string[], parse: (text: string) => T | undefined): T[] =>
    texts.map((text, index) => {
      const one = parse(text);
      if (one !== undefined) return one;
      throw new ClocheError("invalid_argument", `egress.${field}[${index}]: ${JSON.stringify(text)} is none`);
    });
  const allow = read("cidrs", egress.cidrs, parseAllowedCidr).flatMap(({ cidr, ports }) =>
    (["tcp", "udp"] as const).map((protocol) => ({ cidr, protocol, ports })),
  );
  return { mode: "list", allow, domains: read("domains", egress.domains, parseAllowedDomain) };
}

export const egressRulesMax = 256;
const chains = { open: "open", none: "deny", list: "listed" } as const;

/** Checks a policy. Throws invalid_argument, which names the rule and the field. */
export function checkEgress(policy: EgressPolicy): EgressPolicy {
  if (policy.mode !== "list") return policy;
  if (policy.allow.length > egressRulesMax)
    throw new ClocheError("invalid_argument", `egress.allow: at most ${egressRulesMax} rules`);
  policy.allow.forEach((rule, index) => {
    const bad = (field: string, what: string) =>
      new ClocheError("invalid_argument", `egress.allow[${index}].${field}: ${what}`);
    try {
      toRange(rule.cidr);
    } catch {
      throw bad("cidr", `${JSON.stringify(rule.cidr)} is no IPv4 address or range such as 203.0.113.0/24`);
    }
    if (rule.protocol !== "tcp" && rule.protocol !== "udp") throw bad("protocol", "must be tcp or udp");
    const [first, last] = rule.ports;
    const isPort = (port: number) => Number.isInteger(port) && port >= 1 && port <= 65_535;
    if (!isPort(first) || !isPort(last) || first > last)
      throw bad("ports", "must be two ports, the lesser first");
  });
  return policy;
}

/**
 * The nft commands that apply `policy` to `slot`. `known`: the slot's present elements. `generation`: a number not used for
 * the slot before; connections made under another generation are judged anew.
 */
export function egressCommands(
  slot: number,
  policy: EgressPolicy,
  known: SlotElements,
  generation = 0,
): string[] {
  const name = slotInterface(slot);
  const commands = removalCommands(slot, known);
  if (policy.mode !== "none") commands.push(`add element ${routerTable} resolving { ${name} }`);
  if (policy.mode === "list")
    for (const element of disjoint(policy.allow.map(toBox)))
      commands.push(`add element ${routerTable} allowed { ${name} . ${renderBox(element)} }`);
  if (policy.mode === "list" && policy.domains.length > 0)
    commands.push(
      `add element ${routerTable} generation { ${name} : ${generation} }`,
      `add element ${routerTable} opened { ${name} . ${generation} }`,
    );
  commands.push(`add element ${routerTable} egress { ${name} : goto ${chains[policy.mode]} }`);
  return commands;
}

/** The elements that `egressCommands` adds for an open slot, to add them without nft. */
export const openElements = (slot: number): Element[] => [
  { set: "resolving", interface: slotInterface(slot) },
  { set: "egress", interface: slotInterface(slot), chain: chains.open },
];

/** A slot's present elements in nft. */
export interface SlotElements {
  readonly hasEgress: boolean;
  readonly hasResolving: boolean;
  /** As rendered by `renderBox`. */
  readonly allowed: readonly string[];
  /** Mark of connections opened to resolved addresses; 0: none. */
  readonly generation: number;
}

export const noElements: SlotElements = {
  hasEgress: false,
  hasResolving: false,
  allowed: [],
  generation: 0,
};

export function removalCommands(slot: number, known: SlotElements): string[] {
  const name = slotInterface(slot);
  const commands: string[] = [];
  if (known.hasEgress) commands.push(`delete element ${routerTable} egress { ${name} }`);
  if (known.hasResolving) commands.push(`delete element ${routerTable} resolving { ${name} }`);
  for (const element of known.allowed)
    commands.push(`delete element ${routerTable} allowed { ${name} . ${element} }`);
  if (known.generation !== 0)
    commands.push(
      `delete element ${routerTable} generation { ${name} }`,
      `delete element ${routerTable} opened { ${name} . ${known.generation} }`,
    );
  return commands;
}

/** The elements that `egressCommands` leaves. */
export function elementsOf(policy: EgressPolicy, generation = 0): SlotElements {
  return {
    generation: policy.mode === "list" && policy.domains.length > 0 ? generation : 0,
    hasEgress: true,
    hasResolving: policy.mode !== "none",
    allowed: policy.mode === "list" ? disjoint(policy.allow.map(toBox)).map(renderBox) : [],
  };
}

interface Box {
  readonly protocol: "tcp" | "udp";
  readonly first: number;
  readonly last: number;
  readonly firstPort: number;
  readonly lastPort: number;
}

function toBox(rule: EgressRule): Box {
  const [firstPort, lastPort] = rule.ports;
  return { protocol: rule.protocol, ...toRange(rule.cidr), firstPort, lastPort };
}

/**
 * nft refuses elements that overlap in part ("conflicting intervals"). So the rules are split at each other's address bounds, and
 * the port ranges of one address range are joined.
 */
function disjoint(boxes: readonly Box[]): Box[] {
  const result: Box[] = [];
  for (const protocol of ["tcp", "udp"] as const) {
    const mine = boxes.filter((box) => box.protocol === protocol);
    const bounds = [...new Set(mine.flatMap((box) => [box.first, box.last + 1]))].sort((a, b) => a - b);
    for (let i = 0; i + 1 < bounds.length; i++) {
      const first = bounds[i] as number;
      const last = (bounds[i + 1] as number) - 1;
      const ports = mine
        .filter((box) => box.first <= first && last <= box.last)
        .map((box): PortRange => [box.firstPort, box.lastPort]);
      for (const [firstPort, lastPort] of joined(ports))
        result.push({ protocol, first, last, firstPort, lastPort });
    }
  }
  return result;
}

/** The same ports in as few ranges as possible. */
export function joined(ranges: readonly PortRange[]): PortRange[] {
  const result: [number, number][] = [];
  for (const [first, last] of ranges.toSorted((a, b) => a[0] - b[0])) {
    const previous = result.at(-1);
    if (previous && first <= previous[1] + 1) previous[1] = Math.max(previous[1], last);
    else result.push([first, last]);
  }
  return result;
}

function renderBox(box: Box): string {
  const text = (address: number) =>
    [24, 16, 8, 0].map((shift) => Math.floor(address / 2 ** shift) % 256).join(".");
  const addresses = box.first === box.last ? text(box.first) : `${text(box.first)}-${text(box.last)}`;
  const ports = box.firstPort === box.lastPort ? String(box.firstPort) : `${box.firstPort}-${box.lastPort}`;
  return `${addresses} . ${box.protocol} . ${ports}`;
}
