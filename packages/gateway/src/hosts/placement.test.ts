import { describe, expect, it } from "vitest";
import { NoRoom } from "../database/host-reservations.ts";
import type { HostRecord } from "../database/hosts.ts";
import { aHost } from "../testing/fleet-world.ts";
import { type Need, Placement, type PlacementStrategy, shareOf } from "./placement.ts";

const aRow = (id: string, changes: Partial<HostRecord> = {}): HostRecord => ({
  ...aHost(id),
  generation: 1,
  leaseUntilMs: 0,
  isLost: false,
  awaitsAdmission: false,
  reservedMemoryMb: 0,
  state: "open",
  capacityMemoryMb: 10_240,
  ...changes,
});
const need: Need = { memoryMb: 1_024, runtime: "" };

/** Gives the same numbers each time, so that a run can be repeated. */
function randomOf(seed: number): (length: number) => Buffer {
  let state = seed;
  return (length) => {
    const bytes = Buffer.alloc(length);
    for (let index = 0; index < length; index += 1) {
      state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
      bytes[index] = state >>> 24;
    }
    return bytes;
  };
}

function placementOf(rows: readonly HostRecord[], strategy: PlacementStrategy = "spread", seed = 1) {
  let refused = 0;
  const having = new Map<string, Set<string>>();
  const snapshot = { rows: new Map(rows.map((row) => [row.id, row])) };
  const placement = new Placement({
    fleet: {
      isCluster: true,
      ids: () => rows.map(({ id }) => id),
      rows: () => snapshot.rows,
      having: (template) => having.get(template) ?? new Set(),
    },
    strategy,
    randomBytes: randomOf(seed),
    onRefused: () => (refused += 1),
  });
  return { placement, having, snapshot, refused: () => refused };
}
const full = { reservedMemoryMb: 10_240 };

describe.each(["spread", "packed"] as const)("placement, %s", (strategy) => {
  const chosen = (rows: HostRecord[], wanted: Partial<Need> = {}): string =>
    placementOf(rows, strategy).placement.choose({ ...need, ...wanted });

  it("takes hosts that are open, there, told what is their own, and have the room", () => {
    const rows = [
      aRow("h-1", { state: "cordoned" }),
      aRow("h-2", { state: "draining" }),
      aRow("h-3", { isLost: true }),
      aRow("h-4", { awaitsAdmission: true }),
      aRow("h-5", { reservedMemoryMb: 9_217 }),
      aRow("h-6"),
    ];
    expect(chosen(rows)).toBe("h-6");
    expect(() => chosen(rows.slice(0, 5))).toThrow(NoRoom);
  });

  it("takes hosts that have the runtime, and where it matters the CPU", () => {
    const rows = [
      aRow("h-1"),
      aRow("h-2", { runtimes: ["gvisor", "qemu"] }),
      aRow("h-3", { cpuClass: "new" }),
    ];
    expect(chosen(rows, { runtime: "qemu" })).toBe("h-2");
    expect(chosen(rows, { cpuClass: "new" })).toBe("h-3");
    expect(() => chosen(rows, { runtime: "other" })).toThrow(NoRoom);
  });

  it("prefers who would have it sooner, and takes others where those are full", () => {
    const rows = Array.from({ length: 20 }, (_, index) => aRow(`h-${index}`));
    const { placement, having } = placementOf(rows, strategy);
    const ask = (wanted: Partial<Need>) => placement.choose({ ...need, ...wanted });
    expect(ask({ preferred: ["h-2"] })).toBe("h-2");
    having.set("web", new Set(["h-3"]));
    expect(ask({ template: "web" })).toBe("h-3");
    expect(ask({ template: "web", preferred: ["h-2"] })).toBe("h-2");
    Object.assign(rows[2] ?? {}, full);
    expect(ask({ preferred: ["h-2"] })).not.toBe("h-2");
  });
});

describe("a reservation that is refused", () => {
  it("leads to another host, three in all, and is counted", async () => {
    const rows = ["h-1", "h-2", "h-3", "h-4"].map((id) => aRow(id));
    const { placement, snapshot, refused } = placementOf(rows);
    const tried: string[] = [];
    const place = (isRefused: (attempt: number) => boolean) =>
      placement.place(async (choose) => {
        const hostId = choose(need);
        tried.push(hostId);
        if (isRefused(tried.length)) throw new NoRoom(hostId);
        return hostId;
      });
    expect(await place((attempt) => attempt < 3)).toBe(tried[2]);
    expect(new Set(tried).size).toBe(3);
    expect(refused()).toBe(0);
    tried.length = 0;
    // With the rows read again, no host counts as full any more.
    snapshot.rows = new Map(rows.map(({ id }) => [id, aRow(id)]));
    await expect(place(() => true)).rejects.toMatchObject({ code: "unavailable", retryAfterSeconds: 5 });
    expect([new Set(tried).size, refused()]).toEqual([3, 1]);
    await expect(placement.place(() => Promise.reject(new Error("another")))).rejects.toThrow("another");
    expect(refused()).toBe(1);
  });
});

describe("1,000 hosts and 4 gateways whose views are 2 s old", () => {
  /** Places bursts of 400 machines every second until 54 % is reserved; hosts refuse by their true reservations. */
  async function simulate(strategy: PlacementStrategy) {
    const truth = new Map(
      Array.from({ length: 1_000 }, (_, index) => [`h-${String(index).padStart(4, "0")}`, 0]),
    );
    const capacityMemoryMb = 65_536;
    const memoryMb = 2_048;
    const wanted = Math.floor((0.54 * capacityMemoryMb * truth.size) / memoryMb);
    const rows = (): HostRecord[] =>
      [...truth].map(([id, reservedMemoryMb]) => aRow(id, { reservedMemoryMb, capacityMemoryMb }));
    const gateways = Array.from({ length: 4 }, (_, index) => placementOf(rows(), strategy, index + 1));
    let failed = 0;
    let retried = 0;
    let mostInBurst = 0;
    for (let made = 0, second = 0; made < wanted; second += 1) {
      // Each gateway reads the rows every other second.
      for (const [index, { snapshot }] of gateways.entries())
        if (second % 2 === index % 2) snapshot.rows = new Map(rows().map((row) => [row.id, row]));
      const ofBurst = new Map<string, number>();
      for (let one = 0; one < 400 && made < wanted; one += 1, made += 1) {
        const placed = gateways[one % 4]?.placement.place(async (choose) => {
          const id = choose({ memoryMb, runtime: "" });
          const reservedMb = (truth.get(id) ?? 0) + memoryMb;
          if (reservedMb > capacityMemoryMb) {
            retried += 1;
            throw new NoRoom(id);
          }
          truth.set(id, reservedMb);
          ofBurst.set(id, (ofBurst.get(id) ?? 0) + 1);
        });
        await placed?.catch(() => (failed += 1));
      }
      mostInBurst = Math.max(mostInBurst, ...ofBurst.values());
    }
    const shares = rows().map(shareOf);
    return {
      failed,
      retried,
      mostInBurst,
      empty: shares.filter((share) => share === 0).length,
      fullest: Math.max(...shares),
    };
  }

  it("packed: leaves hosts empty, and fails none", async () => {
    const { failed, empty, fullest, mostInBurst } = await simulate("packed");
    expect(failed).toBe(0);
    expect(empty).toBeGreaterThan(150);
    expect(fullest).toBeLessThanOrEqual(1);
    expect(mostInBurst).toBeLessThanOrEqual(24);
  });

  it("spread: leaves none empty, piles on none, and fails none", async () => {
    const { failed, empty, fullest, mostInBurst } = await simulate("spread");
    expect(failed).toBe(0);
    expect(empty).toBe(0);
    expect(fullest).toBeLessThan(0.75);
    expect(mostInBurst).toBeLessThanOrEqual(6);
  });
});
