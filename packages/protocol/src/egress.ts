/** What a sandbox may reach on the network (docs/network.md): checks and parses the text forms of the API. */
import { limits } from "./limits.ts";

/** Every mode. */
export const egressModes = ["open", "none", "allow"] as const;
/** What a sandbox may reach: everything public, nothing, or what is listed. */
export type EgressMode = (typeof egressModes)[number];

/** open: every public address. none: nothing, not even names. allow: what the two lists name. */
export interface Egress {
  /** What the lists mean. */
  mode: EgressMode;
  /** `example.org` or `*.example.org` (any name below it), each with `:443` or `:8000-8100` or for every port. */
  domains: string[];
  /** `203.0.113.0/24` or one address, with ports alike. Private and special ranges stay closed whatever is listed. */
  cidrs: string[];
}

/** First and last port, for TCP and UDP. */
export type PortRange = readonly [number, number];

export interface AllowedDomain {
  /** Lower case, without a final dot. */
  name: string;
  /** True: the entry allows names below `name`, not `name` itself. */
  below: boolean;
  ports: PortRange;
}
export interface AllowedCidr {
  cidr: string;
  ports: PortRange;
}

export const openEgress: Egress = { mode: "open", domains: [], cidrs: [] };

const label = "[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?";
const domain = new RegExp(`^(\\*\\.)?(${label}(\\.${label})*)$`);
const cidrPattern = /^(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})(\/(\d|[12]\d|3[0-2]))?$/;

/** Parses a domain of the list; undefined: not valid. */
export function parseAllowedDomain(text: string): AllowedDomain | undefined {
  const parts = splitPorts(text.toLowerCase());
  const match = parts && domain.exec(parts.what.replace(/\.$/, ""));
  const name = match?.[2] ?? "";
  // An IP address is not a domain name: it belongs to `cidrs`.
  if (!parts || !match || name.length > limits.domainLength || /(^|\.)\d+$/.test(name)) return undefined;
  return { name, below: match[1] !== undefined, ports: parts.ports };
}

/** Parses a CIDR of the list; undefined: not valid. */
export function parseAllowedCidr(text: string): AllowedCidr | undefined {
  const parts = splitPorts(text);
  const match = parts && cidrPattern.exec(parts.what);
  if (!parts || !match || match.slice(1, 5).some((one) => Number(one) > 255)) return undefined;
  return { cidr: parts.what, ports: parts.ports };
}

/** `name`: lower case, without a final dot. */
export function matchesDomain({ name: allowed, below }: AllowedDomain, name: string): boolean {
  return below ? name.endsWith(`.${allowed}`) : name === allowed;
}

function splitPorts(text: string): { what: string; ports: PortRange } | undefined {
  const match = /^([^:]+)(?::(\d{1,5})(?:-(\d{1,5}))?)?$/.exec(text);
  if (!match?.[1]) return undefined;
  const first = Number(match[2] ?? 1);
  const last = match[2] === undefined ? 65_535 : Number(match[3] ?? first);
  if (first < 1 || last > 65_535 || first > last) return undefined;
  return { what: match[1], ports: [first, last] };
}
