// Addresses inside every virtual machine: all the same, so that a clone of a running one needs no change. Each lives behind a
// tap in a network namespace of its own (see tap.ts), which gives it a different address to the outside.

export const guestNetwork = {
  /** The guest's only interface. */
  guestAddress: "198.18.1.2",
  guestMac: "52:c1:0c:e0:00:02",
  /** The tap's address and hardware address: also the same everywhere, since clones remember it. */
  gatewayAddress: "198.18.1.1",
  gatewayMac: "52:c1:0c:e0:00:01",
  prefixLength: 30,
  tap: "tap0",
} as const;
