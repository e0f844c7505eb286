/**
 * A fake cluster for tests of a host, in memory: gateways that keep one lease, as the database does, and the lease's guard.
 */
import { HostState } from "@cloche/protocol/host-registry";
import { internalHeaders } from "@cloche/protocol";
import { HostService } from "@cloche/protocol/host";
import { type Client, Code, ConnectError, createClient, createRouterTransport } from "@connectrpc/connect";
import type { Host } from "../create-host.ts";
import type { ClusterParts } from "../host-parts.ts";
import type { GuardStatus } from "../lease/guard.ts";
import type { LeaseGuard } from "../lease/host-lease.ts";
import { bootMs } from "../lease/boot-clock.ts";
import type { RegistryClient } from "../lease/lease-keeper.ts";

/** Outlives the hosts that use it, like database and guard. */
export class FakeCluster {
  /** Generation of the last registration. */
  generation = 0;
  /** The host is declared lost: renewals are refused, and the next registration is told. */
  isLost = false;
  /** The host was lost, and no gateway has named the machines that stay its own. */
  awaitsAdmission = false;
  /** No gateway answers. */
  isAway = false;
  validMs = 15_000;
  readonly #names: ClusterParts["names"];

  /** `before`: the host's last generation. */
  constructor(names: ClusterParts["names"], before = 0) {
    this.#names = names;
    this.generation = before;
  }

  /** `guard`: outlives the host too; default: a guard that freezes nothing. */
  parts(guard: LeaseGuard = new FakeGuard()): ClusterParts {
    return {
      registration: () => ({
        hostId: "a",
        address: "a.example:7090",
        capacityMemoryMb: 1_024,
        version: "1",
      }),
      gateways: [this.#gateway as unknown as RegistryClient],
      guard,
      names: this.#names,
    };
  }

  get #gateway(): object {
    const lease = (wasLost: boolean) => {
      if (this.isAway) throw new ConnectError("away", Code.Unavailable);
      const generation = BigInt(this.generation);
      const { validMs } = this;
      return { generation, validMs, renewEveryMs: validMs / 3, state: HostState.OPEN, wasLost };
    };
    return {
      registerHost: async () => {
        lease(false);
        this.generation += 1;
        this.awaitsAdmission ||= this.isLost;
        this.isLost = false;
        return lease(this.awaitsAdmission);
      },
      renewHost: async ({ generation }: { generation: bigint }) => {
        lease(false);
        if (this.isLost || Number(generation) !== this.generation)
          throw new ConnectError("over", Code.FailedPrecondition);
        return lease(false);
      },
      leaveHost: async () => lease(false) && {},
    };
  }
}

/** Freezes nothing; answers as if it did. */
export class FakeGuard implements LeaseGuard {
  untilMs = 0;
  hasEnded = false;

  get isFrozen(): boolean {
    return bootMs() >= this.untilMs;
  }

  async open(): Promise<GuardStatus> {
    return this.status();
  }
  async until(untilMs: number): Promise<GuardStatus> {
    this.untilMs = untilMs;
    return this.status();
  }
  async status(): Promise<GuardStatus> {
    return { pid: 1, untilMs: this.untilMs, machines: 0, frozen: 0 };
  }
  close(): void {}
  async end(): Promise<void> {
    this.hasEnded = true;
  }
}

/** Gateways for a host that a test may kill: they never answer it afterwards. */
export function mortalGateways({ gateways }: ClusterParts, isAlive: () => boolean): ClusterParts["gateways"] {
  const whileAlive =
    <Request, Options, Answer>(call: (request: Request, options?: Options) => Promise<Answer>) =>
    (request: Request, options?: Options): Promise<Answer> =>
      isAlive() ? call(request, options) : new Promise<never>(() => undefined);
  return gateways.map(({ registerHost, renewHost, leaveHost }) => ({
    registerHost: whileAlive(registerHost),
    renewHost: whileAlive(renewHost),
    leaveHost: whileAlive(leaveHost),
  }));
}

/** A gateway's client of the host, for its present generation. */
export function clientOf(host: Host): Client<typeof HostService> {
  const router = createRouterTransport(
    ({ service }) => {
      service(HostService, host.service);
    },
    {
      transport: {
        interceptors: [
          (next) => (request) => {
            const name = internalHeaders.hostGeneration;
            if (host.lease && !request.header.has(name))
              request.header.set(name, String(host.lease.generation));
            return next(request);
          },
        ],
      },
    },
  );
  return createClient(HostService, router);
}
