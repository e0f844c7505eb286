import { silentLog } from "@cloche/base";
import { FakeClock } from "@cloche/base/testing";
import { HostState } from "@cloche/protocol/host-registry";
import { Code, ConnectError } from "@connectrpc/connect";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { LeaseKeeper, type RegistryClient } from "./lease-keeper.ts";

let clock: FakeClock;
let startMs: number;
let gateway: { answers: boolean; generation: number; isLost: boolean; state: HostState; delayMs: number };
/** Calls to gateways, with the seconds since the start. */
let asked: string[];
/** The keeper's callbacks: generation, and end of the term in seconds since the start. */
let told: string[];
let keeper: LeaseKeeper;

const seconds = (ms: number): number => (ms - startMs) / 1_000;
const unavailable = () => new ConnectError("away", Code.Unavailable);

/** Gateways with one table of leases. A gateway that is not `alive` never answers. */
function gateways(count: number, alive = (_index: number) => true): RegistryClient[] {
  return Array.from({ length: count }, (_, index) => {
    const answer = async (what: string, act: () => object) => {
      asked.push(`${what} ${index} at ${seconds(clock.monotonicMs())}`);
      if (!alive(index)) return new Promise<never>(() => undefined);
      await clock.sleep(gateway.delayMs);
      if (!gateway.answers) throw unavailable();
      return act();
    };
    const lease = (wasLost: boolean) => ({
      generation: BigInt(gateway.generation),
      validMs: 15_000,
      renewEveryMs: 5_000,
      state: gateway.state,
      wasLost,
    });
    const client = {
      registerHost: () =>
        answer("register", () => {
          gateway.generation += 1;
          const { isLost } = gateway;
          gateway.isLost = false;
          return lease(isLost);
        }),
      renewHost: ({ generation }: { generation: bigint }) =>
        answer("renew", () => {
          if (gateway.isLost || Number(generation) !== gateway.generation)
            throw new ConnectError("over", Code.FailedPrecondition);
          return lease(false);
        }),
      leaveHost: ({ awayMs }: { awayMs: number }) => answer(`leave for ${awayMs}`, () => ({})),
    };
    return client as unknown as RegistryClient;
  });
}

function keep(clients: RegistryClient[]): void {
  keeper = new LeaseKeeper({
    description: {
      hostId: "a",
      address: "a.example:7090",
      cpuClass: "",
      capacityMemoryMb: 1_024,
      version: "1",
      runtimes: ["gvisor"],
    },
    gateways: clients,
    clock,
    bootMs: () => clock.monotonicMs(),
    log: silentLog,
    registered: ({ generation, untilMs }, wasLost) =>
      told.push(`generation ${generation}${wasLost ? " was lost" : ""} until ${seconds(untilMs)}`),
    renewed: ({ untilMs, operatorState }) => told.push(`${operatorState} until ${seconds(untilMs)}`),
  });
  keeper.start();
}

beforeEach(() => {
  clock = new FakeClock();
  startMs = clock.monotonicMs();
  gateway = { answers: true, generation: 0, isLost: false, state: HostState.OPEN, delayMs: 0 };
  asked = [];
  told = [];
});
afterEach(async () => {
  const stopped = keeper.stop();
  await clock.advance(10_000);
  await stopped;
});

describe("a lease", () => {
  it("is renewed every 5 s, and lasts 12 s from when a call was sent", async () => {
    gateway.delayMs = 1_500;
    keep(gateways(1));
    await clock.advance(11_500);
    expect(asked).toEqual(["register 0 at 0", "renew 0 at 5", "renew 0 at 10"]);
    expect(told).toEqual(["generation 1 until 12", "open until 17", "open until 22"]);
  });

  it("is renewed through the next gateway when one does not answer", async () => {
    keep(gateways(3, (index) => index === 2));
    await clock.advance(9_000);
    expect(asked).toEqual(["register 0 at 0", "register 1 at 2", "register 2 at 4", "renew 2 at 9"]);
    expect(told).toEqual(["generation 1 until 16", "open until 21"]);
  });

  it("is tried for again every second while no gateway answers; a late renewal holds", async () => {
    keep(gateways(2));
    await clock.advance(4_000);
    gateway.answers = false;
    await clock.advance(16_000);
    expect(asked.slice(1, 6)).toEqual([
      "renew 0 at 5",
      "renew 1 at 5",
      "renew 0 at 6",
      "renew 1 at 6",
      "renew 0 at 7",
    ]);
    expect(told).toEqual(["generation 1 until 12"]);
    gateway.answers = true;
    await clock.advance(1_000);
    expect(told[1]).toBe("open until 33");
  });

  it("is taken anew when a renewal is refused, and says whether the host was lost", async () => {
    keep(gateways(1));
    await clock.advance(4_000);
    gateway.isLost = true;
    await clock.advance(1_000);
    expect(told).toEqual(["generation 1 until 12", "generation 2 was lost until 17"]);
    gateway.generation = 7;
    await clock.advance(5_000);
    expect(told.slice(2)).toEqual(["generation 8 until 22"]);
  });

  it("brings the operator's word", async () => {
    keep(gateways(1));
    gateway.state = HostState.DRAINING;
    await clock.advance(5_000);
    expect(told[1]).toBe("draining until 17");
  });

  it("does not grow by a time that the computer stood still", async () => {
    gateway.delayMs = 1_000;
    keep(gateways(1));
    await clock.advance(5_500);
    await clock.jump(60_000);
    // The answer to the renewal of 5 s comes a minute late: its term is over.
    expect(told).toContain("open until 17");
  });
});

describe("a host that leaves", () => {
  it("is away as long as it said, and renews no more", async () => {
    keep(gateways(2));
    await clock.advance(2_000);
    const left = keeper.leave(300_000);
    await clock.advance(20_000);
    expect(seconds((await left) ?? 0)).toBe(2 + 297);
    expect(asked).toEqual(["register 0 at 0", "leave for 300000 0 at 2"]);
  });

  it("keeps its last term when no gateway hears it", async () => {
    keep(gateways(2));
    await clock.advance(2_000);
    gateway.answers = false;
    const left = keeper.leave(300_000);
    await clock.advance(10_000);
    expect(await left).toBeUndefined();
    expect(asked).toHaveLength(3);
  });
});
