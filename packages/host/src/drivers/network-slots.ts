import type { Egress } from "@cloche/protocol";

/**
 * A machine's part of the network: one slot, made ahead by network/. A slot is a network namespace with an `eth0` whose other
 * end is in the router namespace. Its address never changes, so the slot number names everything.
 */
export interface NetworkLease {
  readonly slot: number;
  /** Path of the namespace, for example /run/netns/cl-ab12cd-7. */
  readonly namespacePath: string;
  /** The machine's address, as seen from the host's own network namespace. */
  readonly agentHost: string;
  /** Sets address and routes of eth0 again: gVisor removes them when it starts or restores. A fresh lease has them. */
  prepare(): Promise<void>;
}

export interface NetworkSlots {
  lease(): Promise<NetworkLease>;
  /** The lease of a slot that a machine of an earlier service still uses; undefined when the slot is gone. */
  adopt(slot: number): Promise<NetworkLease | undefined>;
  /** Sets what the machine at this address may reach; undefined: the public internet, as a fresh lease may. */
  setEgressOf(agentHost: string, egress: Egress | undefined): Promise<void>;
  /** Counts the connections and questions of the machine at this address to its team's. Repeatable. */
  setTeamOf(agentHost: string, teamId: string): Promise<void>;
  /** Frees the slot. Its next holder never sees traffic of this one. Repeatable. */
  release(slot: number): Promise<void>;
}
