/** The parts that only a host in a cluster has: its lease, the fence of its calls, and its admission after it was declared lost. */
import { type Metrics, SerialQueue } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import type { ClusterCalls } from "./api/host-service.ts";
import type { HostParts, ClusterParts } from "./host-parts.ts";
import { destroyAllBut } from "./operations/admit-machines.ts";
import type { OperationParts } from "./operations/operation-parts.ts";
import { bootMs } from "./lease/boot-clock.ts";
import { CallFence, requireLease, startingGate } from "./lease/call-fence.ts";
import { HostLease } from "./lease/host-lease.ts";
import type { HostDescription } from "./lease/lease-keeper.ts";

/** The part of the description that the host finds out by itself. */
type Describe = () => Promise<Pick<HostDescription, "runtimes" | "cpuClass">>;

export class Member {
  readonly lease: HostLease;
  readonly #loaded = Promise.withResolvers<void>();
  #isLoaded = false;
  /** Whether the host's answers about its machines are true. */
  isStarted = false;

  /** Undefined: the host is in no cluster. */
  static of(parts: HostParts, metrics: Metrics, describe: Describe): Member | undefined {
    return parts.cluster && new Member(parts, parts.cluster, metrics, describe);
  }

  private constructor(
    { clock, log }: HostParts,
    cluster: ClusterParts,
    metrics: Metrics,
    describe: Describe,
  ) {
    const { registration, gateways, guard } = cluster;
    this.lease = new HostLease({
      describe: async () => ({ ...registration(), ...(await describe()) }),
      gateways,
      guard,
      bootMs,
      clock,
      log,
      metrics,
    });
  }

  /** Throws before the host has registered. */
  get generation(): number {
    const { generation } = this.lease;
    if (generation !== undefined) return generation;
    throw new ClocheError("unavailable", "this host has not registered with a gateway yet");
  }

  /** Throws while the lease is not held. */
  requireLease(): void {
    requireLease(this.lease);
  }

  /** Call once the records are loaded. Resolves when machines may run. */
  async mayGoOn(): Promise<void> {
    this.#isLoaded = true;
    this.#loaded.resolve();
    await this.lease.mayGoOn();
  }

  calls(operations: OperationParts): ClusterCalls {
    const { lease } = this;
    const fence = new CallFence(lease);
    const admissions = new SerialQueue();
    const admitOnce = async (ids: ReadonlySet<string>): Promise<void> => {
      if (!lease.awaitsAdmission) return;
      const destroyed = await destroyAllBut(operations, ids);
      const fields = { admitted: ids.size, destroyed };
      operations.log.warn(fields, "admission: the gateway listed the machines of this host");
      await lease.admit();
    };
    return {
      // Before it admits, a gateway must be able to list the machines, though the host has not started.
      gate: startingGate(fence, () => this.isStarted || (this.#isLoaded && lease.awaitsAdmission)),
      admit: async (headers, ids) => {
        fence.check(headers);
        await this.#loaded.promise;
        await admissions.run("", () => admitOnce(ids));
      },
    };
  }
}
