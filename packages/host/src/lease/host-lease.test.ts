import { Metrics, silentLog } from "@cloche/base";
import { FakeClock } from "@cloche/base/testing";
import { HostState } from "@cloche/protocol/host-registry";
import { Code, ConnectError } from "@connectrpc/connect";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import type { GuardStatus } from "./guard.ts";
import { HostLease, type LeaseGuard } from "./host-lease.ts";
import type { RegistryClient } from "./lease-keeper.ts";

let clock: FakeClock;
let gateway: { answers: boolean; generation: number; isLost: boolean; awaitsAdmission: boolean };
let guard: FakeGuard;
let metrics: Metrics;
let opened: HostLease[];

/** Stands for native/guard; outlives the lease. */
class FakeGuard implements LeaseGuard {
  untilMs = 0;
  hasEnded = false;
  get isFrozen(): boolean {
    return clock.monotonicMs() >= this.untilMs;
  }
  async status(): Promise<GuardStatus> {
    return { pid: 1, untilMs: this.untilMs, machines: 3, frozen: this.isFrozen ? 3 : 0 };
  }
  open = () => this.status();
  until(ms: number): Promise<GuardStatus> {
    this.untilMs = ms;
    return this.status();
  }
  close = () => undefined;
  async end(): Promise<void> {
    this.hasEnded = true;
  }
}

const registry = {
  registerHost: async () => {
    if (!gateway.answers) throw new ConnectError("away", Code.Unavailable);
    gateway.generation += 1;
    gateway.awaitsAdmission ||= gateway.isLost;
    gateway.isLost = false;
    return answer(gateway.awaitsAdmission);
  },
  renewHost: async ({ generation }: { generation: bigint }) => {
    if (!gateway.answers) throw new ConnectError("away", Code.Unavailable);
    if (gateway.isLost || Number(generation) !== gateway.generation)
      throw new ConnectError("over", Code.FailedPrecondition);
    return answer(false);
  },
  leaveHost: async () => {
    if (!gateway.answers) throw new ConnectError("away", Code.Unavailable);
    return {};
  },
} as unknown as RegistryClient;
const answer = (wasLost: boolean) => ({
  generation: BigInt(gateway.generation),
  validMs: 15_000,
  renewEveryMs: 5_000,
  state: HostState.OPEN,
  wasLost,
});

/** Opens the lease of a new process of the host, after the one before is gone. */
async function open(): Promise<HostLease> {
  metrics = new Metrics();
  const lease = new HostLease({
    describe: async () => ({
      hostId: "a",
      address: "a.example:7090",
      cpuClass: "",
      capacityMemoryMb: 1_024,
      version: "1",
      runtimes: ["gvisor"],
    }),
    gateways: [registry],
    guard,
    bootMs: () => clock.monotonicMs(),
    clock,
    log: silentLog,
    metrics,
  });
  opened.push(lease);
  await lease.open();
  await clock.advance(0);
  return lease;
}

/** Like kill -9: neither gateway nor guard is told. */
async function kill(lease: HostLease): Promise<void> {
  const { answers } = gateway;
  gateway.answers = false;
  const { untilMs } = guard;
  const closed = lease.close({ machinesGoOn: true });
  await clock.advance(0);
  await closed;
  opened = opened.filter((one) => one !== lease);
  Object.assign(gateway, { answers });
  guard.untilMs = untilMs;
}

beforeEach(() => {
  clock = new FakeClock();
  gateway = { answers: true, generation: 0, isLost: false, awaitsAdmission: false };
  guard = new FakeGuard();
  opened = [];
});
afterEach(async () => {
  for (const lease of opened) {
    const closed = lease.close({ machinesGoOn: false });
    await clock.advance(5_000);
    await closed;
  }
});

/** Opens the lease of a host that was registered before. */
async function running(): Promise<HostLease> {
  guard.untilMs = clock.monotonicMs() + 1_000;
  const lease = await open();
  expect([lease.isHeld, guard.isFrozen]).toEqual([true, false]);
  return lease;
}

describe("machines", () => {
  it("are frozen 12 s after the last renewal, and go on at once when a late one holds", async () => {
    const lease = await running();
    await clock.advance(7_000);
    gateway.answers = false;
    await clock.advance(9_900);
    expect([lease.isHeld, guard.isFrozen]).toEqual([true, false]);
    await clock.advance(100);
    expect([lease.isHeld, guard.isFrozen]).toEqual([false, true]);
    expect(await metrics.text()).toContain("cloche_host_lease_seconds 0\n");
    await clock.advance(500);
    expect(await metrics.text()).toContain("cloche_host_frozen_machines 3\n");
    gateway.answers = true;
    await clock.advance(1_000);
    expect([lease.isHeld, guard.isFrozen]).toEqual([true, false]);
    expect(await metrics.text()).toContain("cloche_host_frozen_machines 0\n");
  });

  it("stay frozen after the host was lost, until it is admitted", async () => {
    const lease = await running();
    gateway.answers = false;
    await clock.advance(25_000);
    Object.assign(gateway, { answers: true, isLost: true });
    await clock.advance(10_000);
    expect(lease).toMatchObject({ generation: 2, isHeld: false, wasLost: true, awaitsAdmission: true });
    expect(guard.isFrozen).toBe(true);
    await lease.admit();
    expect([lease.isHeld, guard.isFrozen]).toEqual([true, false]);
    await clock.advance(20_000);
    expect([lease.isHeld, guard.isFrozen]).toEqual([true, false]);
  });
});

describe("a new process of the host", () => {
  it("freezes nothing while the lease of the one before holds", async () => {
    await kill(await running());
    await clock.advance(11_000);
    expect(guard.isFrozen).toBe(false);
    const lease = await open();
    expect(lease).toMatchObject({ generation: 2, isHeld: true, wasLost: false });
    await clock.advance(12_000);
    expect(guard.isFrozen).toBe(false);
  });

  it("thaws at once when it registers before anybody declared it lost", async () => {
    await kill(await running());
    await clock.advance(16_000);
    expect(guard.isFrozen).toBe(true);
    const lease = await open();
    expect([lease.isHeld, guard.isFrozen]).toEqual([true, false]);
  });

  it("waits for admission when the host was lost meanwhile; so does the one after it", async () => {
    await kill(await running());
    await clock.advance(21_000);
    gateway.isLost = true;
    const first = await open();
    expect(first.awaitsAdmission).toBe(true);
    await kill(first);
    await clock.advance(1_000);
    const second = await open();
    await clock.advance(10_000);
    expect(second).toMatchObject({ isHeld: false, awaitsAdmission: true });
    expect(guard.isFrozen).toBe(true);
  });
});

describe("a host that stops", () => {
  it("leaves its machines running for ten minutes", async () => {
    const lease = await running();
    const closed = lease.close({ machinesGoOn: true });
    await clock.advance(5_000);
    await closed;
    opened = [];
    expect(guard.hasEnded).toBe(false);
    await clock.advance(590_000);
    expect(guard.isFrozen).toBe(false);
    await clock.advance(5_000);
    expect(guard.isFrozen).toBe(true);
  });

  it("has them frozen in time where no gateway heard that it leaves", async () => {
    const lease = await running();
    gateway.answers = false;
    const closed = lease.close({ machinesGoOn: true });
    await clock.advance(11_999);
    expect(guard.isFrozen).toBe(false);
    await clock.advance(1);
    await closed;
    opened = [];
    expect(guard.isFrozen).toBe(true);
  });

  it("ends the guard where no machine goes on", async () => {
    const lease = await running();
    const closed = lease.close({ machinesGoOn: false });
    await clock.advance(5_000);
    await closed;
    opened = [];
    expect(guard.hasEnded).toBe(true);
  });
});
