/**
 * Address arithmetic of an instance's subnet: a /16 cut into /30s. The first /30 is the link between the host and the router
 * namespace. Each other /30 is a slot, with a gateway (in the router) and the sandbox's address. Pure.
 */
import { ClocheError } from "@cloche/protocol";

export interface Subnet {
  /** For example "10.231.0.0/16". */
  readonly cidr: string;
  readonly base: number;
}

export interface LinkAddresses {
  /** The near end: the host on the uplink, the router on a slot. */
  readonly gateway: string;
  /** The far end: the router on the uplink, the sandbox on a slot. */
  readonly address: string;
}

export const linkPrefix = 30;
const linkSize = 4;
/** Slots are 1 to this. Number 0 is the uplink. */
export const slotsMax = 65_536 / linkSize - 1;

/** Parses an IPv4 /16, for example "10.231.0.0/16". Throws invalid_argument, which names CLOCHE_SUBNET. */
export function parseSubnet(cidr: string): Subnet {
  const match = /^(\d{1,3})\.(\d{1,3})\.0\.0\/16$/.exec(cidr);
  const [a, b] = [Number(match?.[1] ?? 256), Number(match?.[2] ?? 256)];
  if (a > 223 || a === 0 || a === 127 || b > 255)
    throw new ClocheError("invalid_argument", `CLOCHE_SUBNET: ${cidr} is no IPv4 /16 such as 10.231.0.0/16`);
  return { cidr: `${a}.${b}.0.0/16`, base: a * 2 ** 24 + b * 2 ** 16 };
}

export function uplinkAddresses(subnet: Subnet): LinkAddresses {
  return linkAddresses(subnet, 0);
}

export function slotAddresses(subnet: Subnet, slot: number): LinkAddresses {
  if (!Number.isInteger(slot) || slot < 1 || slot > slotsMax) throw new RangeError(`no slot ${slot}`);
  return linkAddresses(subnet, slot);
}

/** The slot whose sandbox has `address`; undefined for any other address. */
export function slotOfAddress(subnet: Subnet, address: string): number | undefined {
  const offset = toNumber(address) - subnet.base;
  const slot = Math.floor(offset / linkSize);
  return offset % linkSize === 2 && slot >= 1 && slot <= slotsMax ? slot : undefined;
}

/** Whether two IPv4 ranges in CIDR notation have an address in common. A bare address is a /32. */
export function overlaps(one: string, other: string): boolean {
  const [a, b] = [toRange(one), toRange(other)];
  return a.first <= b.last && b.first <= a.last;
}

export interface Ipv4Range {
  readonly first: number;
  readonly last: number;
}

/** First and last address of a CIDR range. Throws RangeError for any other text. */
export function toRange(cidr: string): Ipv4Range {
  const match = /^([\d.]+)(?:\/(\d{1,2}))?$/.exec(cidr);
  const bits = Number(match?.[2] ?? 32);
  const address = toNumber(match?.[1] ?? "");
  if (Number.isNaN(address) || bits > 32) throw new RangeError(`${cidr} is no IPv4 range`);
  const size = 2 ** (32 - bits);
  const first = Math.floor(address / size) * size;
  return { first, last: first + size - 1 };
}

function linkAddresses(subnet: Subnet, link: number): LinkAddresses {
  const network = subnet.base + link * linkSize;
  return { gateway: toText(network + 1), address: toText(network + 2) };
}

function toText(address: number): string {
  return [24, 16, 8, 0].map((shift) => Math.floor(address / 2 ** shift) % 256).join(".");
}

/** Whether an address is in one of the ranges, or is no IPv4 address. */
export function isSpecial(address: string, ranges: readonly string[]): boolean {
  return Number.isNaN(toNumber(address)) || ranges.some((range) => overlaps(address, range));
}

/** NaN if the text is no IPv4 address. */
function toNumber(text: string): number {
  const parts = text.split(".");
  if (parts.length !== 4 || parts.some((part) => !/^\d{1,3}$/.test(part) || Number(part) > 255))
    return Number.NaN;
  return parts.reduce((sum, part) => sum * 256 + Number(part), 0);
}
