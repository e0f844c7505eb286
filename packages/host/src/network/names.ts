/** Names of the network objects of an instance. Interface names have at most 15 characters. */
export interface NetworkNames {
  /** Network namespace of the router. */
  readonly router: string;
  /** The host's end of the link to the router. */
  readonly uplink: string;
  /** The router's end. */
  readonly routerUplink: string;
  /** nft table in the host's own network namespace. */
  readonly hostTable: string;
}

export const sandboxInterface = "eth0";
export const netnsDir = "/run/netns";

export function networkNames(tag: string): NetworkNames {
  return { router: `cloche-${tag}`, uplink: `cl-${tag}`, routerUplink: "uplink", hostTable: `cloche_${tag}` };
}

export const slotNamespace = (tag: string, slot: number) => `cl-${tag}-${slot}`;
/** The router's end of a slot's link. */
export const slotInterface = (slot: number) => `s${slot}`;

/** The slot of a namespace name of this instance, undefined for other names. */
export function slotOfNamespace(tag: string, name: string): number | undefined {
  const digits = name.startsWith(`cl-${tag}-`) ? name.slice(tag.length + 4) : "";
  return /^[1-9]\d{0,4}$/.test(digits) ? Number(digits) : undefined;
}
