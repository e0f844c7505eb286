/**
 * The nft rules of the router namespace and of the host, as text for `nft -f`. Pure. Loading them again replaces the rules and
 * keeps the elements of the sets, so that a restart of the service changes nothing for running sandboxes.
 */
import { sandboxResolver } from "@cloche/artifacts";
import { type Subnet, uplinkAddresses } from "./address.ts";
import { type ConnectionShares, connectionShares } from "./connection-shares.ts";
import { type NetworkNames, networkNames } from "./names.ts";

export const routerTable = "inet cloche";
/** Most connections of a sandbox at once; more are refused. Each also takes an entry of the host's own table. */
export const connectionsPerSlotMax = 1_200;
/** New connections of a sandbox: sustained rate and burst. It bounds the entries of closed ones, which are not counted. */
export const openedPerSecond = 500;
export const openedBurst = 2_500;
/**
 * How long the entry of a TCP connection stays once it is closed, and while no packet comes. The kernel's own 120 s and 5 days are more than
 * is needed: connections of a sandbox that was deleted are never closed, and count to its team for so long.
 */
const closedKeptSeconds = 5;
const idleKeptSeconds = 3_600;
/** Of a `ct timeout` object. */
export const connectionsKept = `protocol tcp; l3proto ip; policy = { established : ${idleKeptSeconds}, time_wait : ${closedKeptSeconds}, close : ${closedKeptSeconds} };`;
/**
 * Connections are counted in so many parts, because the kernel walks through all connections of a part for a new one. Some parts are full
 * before others, so that a bound is met some percent early.
 */
const countedParts = 64;
/** By both ends, so that neither many peers of one port nor many ports of one peer are in one part. */
const countedPart = `jhash ip daddr . th sport . th dport mod ${countedParts}`;

/** How long a refused destination stays in the owner's report after the last try. */
export const refusalsKeptSeconds = 600;
/** New refused destinations noted for one sandbox, so that a scan does not fill the table for others. */
const refusalsNotedPerSecond = 1;
const refusalsNotedBurst = 64;

/** Refusals of all sandboxes that get an answer; beyond it refused packets are dropped silently. */
const refusalsPerSecond = 500;

/** Ranges that are not public (IANA special-purpose registry) and so never reachable from a sandbox. */
export const specialRanges = [
  "0.0.0.0/8",
  "10.0.0.0/8",
  "100.64.0.0/10", // carrier-grade NAT, and clouds' internal services
  "127.0.0.0/8",
  "168.63.129.16/32", // a public address that Azure answers itself: the platform's DHCP, names and agent
  "169.254.0.0/16", // link-local: clouds' metadata services
  "172.16.0.0/12",
  "192.0.0.0/24",
  "192.0.2.0/24",
  "192.88.99.0/24",
  "192.168.0.0/16",
  "198.18.0.0/15",
  "198.51.100.0/24",
  "203.0.113.0/24",
  "224.0.0.0/4", // multicast
  "240.0.0.0/4",
];

export interface RouterRules {
  readonly subnet: Subnet;
  /** Port of the DNS forwarder, on the host's end of the uplink. */
  readonly dnsPort: number;
  /** Entries of the host's table of connections. */
  readonly tableSize: number;
}

/**
 * Its sets have for each slot: the only source address, the mode (egress), whether names may be resolved, the allow-list, its team's mark,
 * counters. A set with elements of slots also enters slot-egress.ts, which removes them with the slot, and nft-listing.ts.
 */
export function routerRules({ subnet, dnsPort, tableSize }: RouterRules): string {
  const host = uplinkAddresses(subnet).gateway;
  const table = routerTable;
  const destination = "iifname . ip daddr . meta l4proto . th dport";
  const chains = ["forged", "deny", "counted", "open", "listed", "inbound", "outbound"];
  const hooks = [
    ["spoof", "type filter hook prerouting priority raw; policy accept;"],
    ["resolve", "type nat hook prerouting priority dstnat; policy accept;"],
    ["forward", "type filter hook forward priority filter; policy drop;"],
    ["input", "type filter hook input priority filter; policy drop;"],
  ];
  return [
    `add table ${table}`,
    `add set ${table} sources { type ifname . ipv4_addr; }`,
    `add map ${table} egress { type ifname : verdict; }`,
    `add set ${table} resolving { type ifname; }`,
    `add set ${table} allowed { type ifname . ipv4_addr . inet_proto . inet_service; flags interval; }`,
    // Resolved addresses of allowed names, until the answer expires. Connections made to them stay allowed by their mark.
    `add set ${table} resolved { type ifname . ipv4_addr . inet_service; flags interval,timeout; }`,
    `add map ${table} generation { type ifname : mark; }`,
    `add set ${table} opened { type ifname . mark; }`,
    `add set ${table} denied { type ifname; size 65535; flags dynamic; counter; }`,
    `add set ${table} noting { type ifname; size 65535; flags dynamic; }`,
    `add set ${table} refusals { type ifname . ipv4_addr . inet_proto . inet_service; size 65535; flags dynamic,timeout; timeout ${refusalsKeptSeconds}s; counter; }`,
    `add set ${table} opening { type ifname; size 65535; flags dynamic,timeout; timeout 1m; }`,
    `add set ${table} connections { type ifname; size 65535; flags dynamic; }`,
    `add map ${table} teams { type ifname : mark; }`,
    // Elements keep the bound that they were made with.
    // Other names than before: their elements were others, and a set that exists keeps its type.
    `add set ${table} connections_of_team { typeof meta mark . meta mark; size 1048576; flags dynamic; }`,
    `add set ${table} connections_of_all { type mark; size ${countedParts}; flags dynamic; }`,
    ...sandboxesTimeout(table),
    ...specialSet(table, subnet),
    ...chains.map((name) => `add chain ${table} ${name}`),
    ...hooks.map(([name, hook]) => `add chain ${table} ${name} { ${hook} }`),
    ...[...chains, ...hooks.map(([name]) => name)].map((name) => `flush chain ${table} ${name}`),

    `add rule ${table} deny update @denied { iifname }`,
    // Without look-ups of names: these go to the forwarder, which reports refused names itself.
    `add rule ${table} deny ct status & dnat == 0 ${destination} @refusals update @refusals { ${destination} }`,
    `add rule ${table} deny ct status & dnat == 0 ${destination} != @refusals update @noting { iifname limit rate ${refusalsNotedPerSecond}/second burst ${refusalsNotedBurst} packets } update @refusals { ${destination} }`,
    // Reject, so that programs fail at once instead of after minutes. A flood is dropped silently.
    `add rule ${table} deny meta l4proto tcp limit rate ${refusalsPerSecond}/second reject with tcp reset`,
    `add rule ${table} deny meta l4proto != tcp limit rate ${refusalsPerSecond}/second reject with icmpx admin-prohibited`,
    `add rule ${table} deny drop`,
    `add rule ${table} forged update @denied { iifname }`,
    `add rule ${table} forged drop`,

    // Before anything is tracked or translated.
    `add rule ${table} spoof iifname "s*" meta nfproto != ipv4 goto forged`,
    `add rule ${table} spoof iifname "s*" iifname . ip saddr != @sources goto forged`,

    `add rule ${table} resolve iifname "s*" ip daddr ${sandboxResolver} meta l4proto { tcp, udp } th dport 53 dnat ip to ${host}:${dnsPort}`,
    `add rule ${table} resolve iifname "s*" fib daddr type local meta l4proto { tcp, udp } th dport 53 dnat ip to ${host}:${dnsPort}`,

    `add rule ${table} forward iifname "uplink" goto inbound`,
    `add rule ${table} forward iifname "s*" oifname "uplink" goto outbound`,
    `add rule ${table} forward goto deny`,

    // Only the host itself, and answers. The host has already dropped packets of others to a sandbox.
    `add rule ${table} inbound ct state established,related accept`,
    `add rule ${table} inbound ip saddr ${host} accept`,
    `add rule ${table} inbound drop`,

    // Answers to the host are always allowed. Everything else is judged for each packet, so that a changed mode also cuts
    // open connections.
    `add rule ${table} outbound ip daddr ${host} ct direction reply ct state established,related accept`,
    `add rule ${table} outbound ct state new ct status & confirmed == 0 jump counted`,
    `add rule ${table} outbound ip daddr ${host} ct status dnat iifname @resolving accept`,
    `add rule ${table} outbound ip daddr @special goto deny`,
    `add rule ${table} outbound iifname vmap @egress`,
    `add rule ${table} outbound goto deny`,
    ...countedRules(table, connectionShares(tableSize)),
    `add rule ${table} open accept`,
    `add rule ${table} listed iifname . ip daddr . meta l4proto . th dport @allowed accept`,
    `add rule ${table} listed ct state established iifname . ct mark @opened accept`,
    `add rule ${table} listed meta l4proto { tcp, udp } iifname . ip daddr . th dport @resolved ct mark set iifname map @generation accept`,
    `add rule ${table} listed goto deny`,

    // The router offers no service, but answers pings.
    `add rule ${table} input ct state established,related accept`,
    `add rule ${table} input icmp type echo-request limit rate 100/second accept`,
    `add rule ${table} input iifname "lo" accept`,
    "",
  ].join("\n");
}

/**
 * A new connection, before it has an entry in the table. The rate comes first: refused tries stay in a count until the kernel finds that
 * they are gone.
 */
function countedRules(table: string, { all, ofTeam }: ConnectionShares): string[] {
  const ofPart = (most: number): number => Math.max(1, Math.floor(most / countedParts));
  return [
    `add rule ${table} counted update @opening { iifname limit rate over ${openedPerSecond}/second burst ${openedBurst} packets } goto deny`,
    `add rule ${table} counted add @connections { iifname ct count over ${connectionsPerSlotMax} } goto deny`,
    `add rule ${table} counted meta mark set iifname map @teams add @connections_of_team { meta mark . ${countedPart} ct count over ${ofPart(ofTeam)} } goto deny`,
    `add rule ${table} counted add @connections_of_all { ${countedPart} ct count over ${ofPart(all)} } goto deny`,
    `add rule ${table} counted meta l4proto tcp ct timeout set "sandboxes"`,
  ];
}

const sandboxesTimeout = (table: string): string[] => [
  `add ct timeout ${table} sandboxes { ${connectionsKept} }`,
];

/** The host's own table: address translation for egress. Of the host itself sandboxes reach only the DNS forwarder. */
export function hostRules(tag: string, { subnet, dnsPort }: Omit<RouterRules, "tableSize">): string {
  const { hostTable, uplink }: NetworkNames = networkNames(tag);
  const host = uplinkAddresses(subnet).gateway;
  const table = `inet ${hostTable}`;
  return [
    `add table ${table}`,
    `delete table ${table}`,
    `add table ${table}`,
    ...specialSet(table, subnet),
    ...sandboxesTimeout(table),
    `add chain ${table} spoof { type filter hook prerouting priority raw; policy accept; }`,
    `add chain ${table} input { type filter hook input priority filter - 5; policy accept; }`,
    `add chain ${table} forward { type filter hook forward priority filter - 5; policy accept; }`,
    `add chain ${table} translate { type nat hook postrouting priority srcnat; policy accept; }`,

    // Only sandboxes' addresses may come from the uplink, and only from there. (The host reaches itself over lo.)
    `add rule ${table} spoof iifname "${uplink}" meta nfproto != ipv4 drop`,
    `add rule ${table} spoof iifname "${uplink}" ip saddr != ${subnet.cidr} drop`,
    `add rule ${table} spoof iifname != { "${uplink}", "lo" } ip saddr ${subnet.cidr} drop`,
    `add rule ${table} spoof iifname != { "${uplink}", "lo" } ip daddr ${subnet.cidr} drop`,

    `add rule ${table} input iifname "${uplink}" ct state established,related accept`,
    `add rule ${table} input iifname "${uplink}" ip daddr ${host} meta l4proto { tcp, udp } th dport ${dnsPort} accept`,
    `add rule ${table} input iifname "${uplink}" icmp type echo-request ip daddr ${host} limit rate 100/second accept`,
    `add rule ${table} input iifname "${uplink}" drop`,

    // A second filter behind the router's: a flaw there must not open the private network.
    `add rule ${table} forward iifname "${uplink}" ip daddr @special drop`,
    `add rule ${table} forward iifname "${uplink}" oifname "cl-*" drop`,
    `add rule ${table} forward iifname "${uplink}" ct state new meta l4proto tcp ct timeout set "sandboxes"`,
    `add rule ${table} forward oifname "${uplink}" ct state established,related accept`,
    `add rule ${table} forward oifname "${uplink}" drop`,

    `add rule ${table} translate ip saddr ${subnet.cidr} oifname != "${uplink}" masquerade`,
    "",
  ].join("\n");
}

function specialSet(table: string, subnet: Subnet): string[] {
  return [
    `add set ${table} special { type ipv4_addr; flags interval; auto-merge; }`,
    `flush set ${table} special`,
    `add element ${table} special { ${[...specialRanges, subnet.cidr].join(", ")} }`,
  ];
}
