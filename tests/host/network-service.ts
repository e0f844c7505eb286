// Run as a child in a namespace that plays the host: opens the network and obeys one JSON line after another. Being a
// process of its own, it can be killed -9, and its host's routes, rules and ip_forward are not this machine's.
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import type { EgressPolicy } from "../../packages/host/src/network/egress.ts";
import { destroyNetwork, type NetworkLease, openNetwork } from "../../packages/host/src/network/network.ts";
import { Native } from "../../packages/host/src/sys/native.ts";

export interface NetworkCommand {
  op:
    | "lease"
    | "adopt"
    | "release"
    | "reclaim"
    | "prepare"
    | "egress"
    | "team"
    | "denials"
    | "report"
    | "subnet"
    | "close"
    | "destroy";
  slot?: number;
  policy?: EgressPolicy;
  team?: string;
}

const { program, tag, subnet, stateDir, resolver, slotsAhead, tableSize } = JSON.parse(
  process.argv[2] ?? "{}",
) as {
  program: string;
  tag: string;
  subnet: string;
  stateDir: string;
  resolver: string;
  slotsAhead: number;
  tableSize?: number;
};
const native = new Native(program);
const say = (answer: unknown) => console.log(JSON.stringify(answer));
const leases = new Map<number, NetworkLease>();
const options = {
  tag,
  subnet,
  subnetFile: join(dirname(stateDir), "subnet"),
  stateDir,
  native,
  slotsAhead,
  ...(tableSize && { connectionTableSize: tableSize }),
  resolvers: async () => [resolver],
  progress: () => {},
  onError: (error: unknown) => console.error(error),
};
const opened = openNetwork(options);

async function obey({ op, slot = 0, policy, team = "" }: NetworkCommand): Promise<unknown> {
  const network = await opened;
  const remember = (lease: NetworkLease | undefined) => {
    if (lease) leases.set(lease.slot, lease);
    return lease ?? null;
  };
  switch (op) {
    case "lease":
      return remember(await network.lease());
    case "adopt":
      return remember(await network.adopt(slot));
    case "release":
      return (await network.release(slot)) ?? null;
    case "reclaim":
      return network.reclaim();
    case "prepare":
      return (await leases.get(slot)?.prepare()) ?? null;
    case "egress":
      return (await network.setEgress(slot, policy ?? { mode: "open" })) ?? null;
    case "team":
      return (await network.setTeamOf(leases.get(slot)?.address ?? "", team)) ?? null;
    case "denials":
      return Object.fromEntries(await network.denials());
    case "report":
      return network.reportOf(leases.get(slot)?.address ?? "");
    case "subnet":
      return network.subnet;
    case "close":
      await network.close();
      await native.close();
      return null;
    case "destroy":
      await network.close();
      await destroyNetwork(options);
      await native.close();
      return null;
  }
}

opened.then(
  () => say({ ready: true }),
  (error: unknown) => say({ error: String(error) }),
);
for await (const line of createInterface({ input: process.stdin })) {
  try {
    say({ value: await obey(JSON.parse(line) as NetworkCommand) });
  } catch (error) {
    say({ error: String(error) });
  }
}
