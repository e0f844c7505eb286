/**
 * Addresses inside a virtual machine. They are equal in all machines, so that a clone needs no change. Each machine is behind a tap
 * in its own network namespace (tap.ts), which gives it a different address outside.
 */

export const guestNetwork = {
  /** The guest's only interface. */
  guestAddress: "198.18.1.2",
  guestMac: "52:c1:0c:e0:00:02",
  /** The tap's address and hardware address; equal in all machines too, because clones remember them. */
  gatewayAddress: "198.18.1.1",
  gatewayMac: "52:c1:0c:e0:00:01",
  prefixLength: 30,
  tap: "tap0",
} as const;
