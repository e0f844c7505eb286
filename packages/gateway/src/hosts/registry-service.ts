/** cloche.host.v1.HostRegistryService: hosts take and renew their leases through any gateway. */
import { ClocheError } from "@cloche/protocol";
import { type HostRegistryService, HostState as WireState } from "@cloche/protocol/host-registry";
import type { HandlerContext, ServiceImpl } from "@connectrpc/connect";
import type { HostRecord, HostState } from "../database/hosts.ts";
import { answering } from "../http/errors.ts";
import { gatewayLimits } from "../limits.ts";
import type { HostDirectory } from "./host-directory.ts";

/** `hostOf`: the id of the host that makes the call, from its certificate; undefined: the caller is no host. */
export function registryService(
  directory: HostDirectory,
  hostOf: (context: HandlerContext) => string | undefined,
): ServiceImpl<typeof HostRegistryService> {
  const asHost = (context: HandlerContext, id: string, call: () => Promise<HostRecord>) =>
    answering(async () => {
      const caller = hostOf(context);
      if (caller === undefined || caller !== id)
        throw new ClocheError("permission_denied", "host_id must be the id in the caller's certificate");
      return leaseOf(await call());
    });
  return {
    registerHost: ({ hostId, address, zone, cpuClass, capacityMemoryMb, version }, context) =>
      asHost(context, hostId, async () => {
        if (address === "")
          throw new ClocheError("invalid_argument", "address is missing; it must be host:port");
        const capacity = Number(capacityMemoryMb);
        return await directory.register({
          id: hostId,
          address,
          zone,
          cpuClass,
          capacityMemoryMb: capacity,
          version,
        });
      }),
    renewHost: ({ hostId, generation }, context) =>
      asHost(context, hostId, () => directory.renew({ id: hostId, generation: Number(generation) })),
  };
}

const leaseOf = ({ generation, state }: HostRecord) => ({
  generation: BigInt(generation),
  validMs: gatewayLimits.hostLeaseMs,
  renewEveryMs: gatewayLimits.hostRenewMs,
  state: wireStates[state],
});

const wireStates: Record<HostState, WireState> = {
  open: WireState.OPEN,
  cordoned: WireState.CORDONED,
  draining: WireState.DRAINING,
};
