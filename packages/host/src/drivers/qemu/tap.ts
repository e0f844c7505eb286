/**
 * Connects a machine's network slot with its guest: a tap with fixed addresses and address translation, made inside the slot's
 * network namespace. Outside, the machine has the slot's address; inside, every guest has the same address.
 *
 *   host ──▶ eth0 (slot address : agent port) ──DNAT──▶ tap0 ──▶ guest          guest ──▶ tap0 ──masquerade──▶ eth0
 *
 * Nothing here outlives the namespace, which network/ makes and removes.
 */
import { readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { guestNetwork } from "@cloche/artifacts";
import { connectionsKept, connectionsPerSlotMax, openedBurst, openedPerSecond } from "../../network/rules.ts";
import type { NetworkLease } from "../network-slots.ts";
import type { VmEnvironment } from "./environment.ts";

/** Of the router's bounds. The router is the first to refuse, with an answer; here packets are dropped. */
const share = 2;

/** Repeatable: the slot may already have a tap. `dir`: the machine's directory, for error output. */
export async function prepareTap(
  environment: VmEnvironment,
  lease: NetworkLease,
  dir: string,
  { uid, agentPort }: { uid: number; agentPort: number },
): Promise<void> {
  const { tap, gatewayAddress, gatewayMac, guestAddress, guestMac, prefixLength } = guestNetwork;
  const links = [
    `tuntap add dev ${tap} mode tap user ${uid} vnet_hdr`,
    `link set dev ${tap} address ${gatewayMac} up`,
    `addr add ${gatewayAddress}/${prefixLength} dev ${tap}`,
    // A fixed neighbour entry, because the guest cannot answer ARP right after a restore.
    `neigh replace ${guestAddress} lladdr ${guestMac} dev ${tap} nud permanent`,
  ];
  const script = `set -e
ip link del ${tap} 2> /dev/null || true
ip -batch - <<'LINKS'
${links.join("\n")}
LINKS
nft -f - <<'RULES'
${rules(agentPort)}
RULES
echo 1 > /proc/sys/net/ipv4/ip_forward
# No neighbour entry for a source that the guest made up: the whole computer has 1,024 places for entries.
echo 1 > /proc/sys/net/ipv4/conf/${tap}/rp_filter
echo 0 > /proc/sys/net/netfilter/nf_conntrack_tcp_loose
`;
  const stderrFile = join(dir, "tap.errors");
  const { exitCode } = await environment.native.exec({
    argv: ["sh", "-c", script],
    netns: lease.namespacePath,
    stderrFile,
  });
  const stderr = exitCode === 0 ? "" : await readFile(stderrFile, "utf8");
  await rm(stderrFile, { force: true });
  if (exitCode !== 0) throw new Error(`making the tap of slot ${lease.slot}: ${stderr.trim()}`);
}

/**
 * A clone has its source's connections in memory, which this namespace has never seen. They are reset at once, so that they do not
 * hang until the guest gives up. Guests reach no service of the namespace itself. The connections of a guest are bounded, because their
 * entries take the kernel's memory and not the machine's.
 */
function rules(agentPort: number): string {
  const { tap, guestAddress, guestMac, gatewayAddress } = guestNetwork;
  return `table ip cloche_vm
delete table ip cloche_vm
table ip cloche_vm {
  ct timeout of_guest { ${connectionsKept} }
  chain opening {
    type filter hook prerouting priority mangle
    iifname "${tap}" ip saddr != ${guestAddress} drop
    iifname "${tap}" ct state new ct status & confirmed == 0 jump counted
  }
  chain counted {
    limit rate over ${share * openedPerSecond}/second burst ${share * openedBurst} packets drop
    ct count over ${share * connectionsPerSlotMax} drop
    meta l4proto tcp ct timeout set "of_guest"
  }
  chain arriving {
    type nat hook prerouting priority dstnat
    iifname "eth0" tcp dport ${agentPort} dnat to ${guestAddress}:${agentPort}
  }
  chain leaving {
    type nat hook postrouting priority srcnat
    oifname "eth0" ip saddr ${guestAddress} masquerade
  }
  chain through {
    type filter hook forward priority filter; policy drop
    iifname "${tap}" ether saddr != ${guestMac} drop
    iifname "${tap}" meta l4proto tcp ct state invalid reject with tcp reset
    ct state invalid drop
    iifname "${tap}" oifname "eth0" accept
    iifname "eth0" oifname "${tap}" accept
  }
  chain inward {
    type filter hook input priority filter; policy accept
    iifname "${tap}" ip daddr ${gatewayAddress} icmp type echo-request accept
    iifname "${tap}" drop
  }
}`;
}
