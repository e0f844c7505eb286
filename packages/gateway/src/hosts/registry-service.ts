/** cloche.host.v1.HostRegistryService: hosts take and renew their leases through any gateway. */
import { ClocheError } from "@cloche/protocol";
import { type HostRegistryService, HostState as WireState } from "@cloche/protocol/host-registry";
import type { HandlerContext, ServiceImpl } from "@connectrpc/connect";
import type { HostRecord, HostState } from "../database/hosts.ts";
import { answering } from "../errors.ts";
import { gatewayLimits } from "../limits.ts";
import type { HostDirectory } from "./host-directory.ts";

/** `hostOf`: the id of the host that makes the call, from its certificate; undefined: the caller is no host. */
export function registryService(
  directory: HostDirectory,
  hostOf: (context: HandlerContext) => string | undefined,
): ServiceImpl<typeof HostRegistryService> {
  const asHost = <T>(context: HandlerContext, id: string, call: () => Promise<T>) =>
    answering(async () => {
      const caller = hostOf(context);
      if (caller === undefined || caller !== id)
        throw new ClocheError("permission_denied", "host_id must be the id in the caller's certificate");
      return await call();
    });
  return {
    registerHost: (request, context) =>
      asHost(context, request.hostId, async () => {
        const { hostId: id, address, cpuClass, version, runtimes } = request;
        if (address === "")
          throw new ClocheError("invalid_argument", "address is missing; it must be host:port");
        const capacityMemoryMb = Number(request.capacityMemoryMb);
        const said = { id, address, cpuClass, capacityMemoryMb, version, runtimes };
        const host = await directory.register(said);
        return { ...leaseOf(host), wasLost: host.awaitsAdmission };
      }),
    renewHost: ({ hostId, generation }, context) =>
      asHost(context, hostId, async () =>
        leaseOf(await directory.renew({ id: hostId, generation: Number(generation) })),
      ),
    leaveHost: ({ hostId, generation, awayMs }, context) =>
      asHost(context, hostId, async () => {
        if (awayMs > gatewayLimits.hostAwayMaxMs)
          throw new ClocheError(
            "invalid_argument",
            `away_ms must be at most ${gatewayLimits.hostAwayMaxMs} (15 minutes)`,
          );
        await directory.renew({ id: hostId, generation: Number(generation) }, awayMs);
        return {};
      }),
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
