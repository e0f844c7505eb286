/** cloche.host.v1.HostRegistryService: hosts take and renew their leases through any gateway. */
import { parseAddress } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import {
  type HostRegistryService,
  HostState as WireState,
  type RegisterHostRequest,
} from "@cloche/protocol/host-registry";
import type { HandlerContext, ServiceImpl } from "@connectrpc/connect";
import type { HostDescription, HostRecord, HostState } from "../database/hosts.ts";
import { answering } from "../errors.ts";
import { gatewayLimits } from "../limits.ts";
import type { HostDirectory } from "./host-directory.ts";
import { isCpuClass } from "./host-reports.ts";

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
        const host = await directory.register(describedHost(request));
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

const addressLengthMax = 300;
const capacityMbMax = 2 ** 40;
const versionPattern = /^[\w.+-]{0,64}$/;
const runtimePattern = /^[a-z0-9-]{1,32}$/;
const runtimesMax = 8;

/** Every gateway reads the rows of all hosts every 2 s, and connects to their addresses: what a host says of itself is short. */
function describedHost(request: RegisterHostRequest): HostDescription {
  const { hostId: id, address, cpuClass, version, runtimes } = request;
  const capacityMemoryMb = Number(request.capacityMemoryMb);
  const require = (isRight: boolean, what: string): void => {
    if (!isRight) throw new ClocheError("invalid_argument", what);
  };
  require(address.length <= addressLengthMax && isAddress(address), "address must be host:port");
  require(isCpuClass(cpuClass), "cpu_class must be at most 256 printable characters without spaces");
  require(versionPattern.test(version), "version must be at most 64 letters, digits and ._+-");
  require(capacityMemoryMb <= capacityMbMax, `capacity_memory_mb must be at most ${capacityMbMax}`);
  const areRuntimes = runtimes.length <= runtimesMax && runtimes.every((one) => runtimePattern.test(one));
  require(areRuntimes, `runtimes must be at most ${runtimesMax} words`);
  return { id, address, cpuClass, capacityMemoryMb, version, runtimes };
}

function isAddress(address: string): boolean {
  try {
    return parseAddress(address).host !== "";
  } catch {
    return false;
  }
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
