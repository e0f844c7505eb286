/** gRPC's health protocol: the same as `/readyz`, for load balancers and orchestrators that ask by gRPC. No API key. */
import type { Clock } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import { Health, HealthCheckResponse_ServingStatus as Status } from "@cloche/protocol/grpc-health";
import type { ServiceImpl } from "@connectrpc/connect";
import { gatewayLimits } from "../limits.ts";
import { connectErrorFrom } from "../errors.ts";

export interface HealthNeeds {
  /** Throws when the gateway cannot serve. */
  ready: () => Promise<void>;
  clock: Clock;
  /** Names of services that calls may ask for; the empty name is the whole server. */
  services: ReadonlySet<string>;
}

export function grpcHealth({ ready, clock, services }: HealthNeeds): ServiceImpl<typeof Health> {
  const isKnown = (service: string): boolean => service === "" || services.has(service);
  const status = async (): Promise<Status> =>
    await ready().then(
      () => Status.SERVING,
      () => Status.NOT_SERVING,
    );
  return {
    async check({ service }) {
      if (isKnown(service)) return { status: await status() };
      const message = `service: there is no service ${JSON.stringify(service)}`;
      throw connectErrorFrom(new ClocheError("not_found", message));
    },

    /** Ends with NOT_SERVING when the gateway stops. */
    async *watch({ service }, { signal }) {
      let told: Status | undefined;
      for (;;) {
        const now = isKnown(service) ? await status() : Status.SERVICE_UNKNOWN;
        if (now !== told) yield { status: (told = now) };
        if (signal.aborted) return;
        await clock.sleep(gatewayLimits.healthWatchMs, signal).catch(() => undefined);
      }
    },
  };
}
