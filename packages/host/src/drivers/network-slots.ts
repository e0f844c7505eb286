import type { Egress } from "@cloche/protocol";

/**
 * What a machine needs of the network: one slot, made ahead by network/. A slot is a network namespace with an `eth0`
 * whose other end the router namespace holds; its address never changes, so slot numbers name everything.
 */
export interface NetworkLease {
  readonly slot: number;
  /** Path of the namespace, for example /run/netns/cl-ab12cd-7. */
  readonly namespacePath: string;
  /** Where the host's own network namespace reaches the machine. */
  readonly agentHost: string;
  /** Address and routes of eth0 into the namespace again: gVisor takes them out when it starts or restores, a fresh lease has them. */
  prepare(): Promise<void>;
}

export interface NetworkSlots {
  lease(): Promise<NetworkLease>;
  /** The lease of a slot that a machine of an earlier service still uses; undefined when the slot is gone. */
  adopt(slot: number): Promise<NetworkLease | undefined>;
  /** What the machine at this address may reach from now on; undefined: what a fresh lease may, the public internet. */
  setEgressOf(agentHost: string, egress: Egress | undefined): Promise<void>;
  /** The next holder of the slot must not see traffic of this one. Repeatable. */
  release(slot: number): Promise<void>;
}
