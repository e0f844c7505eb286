import { randomBytes } from "node:crypto";
import { cp, mkdir, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Clock, silentLog } from "@cloche/base";
import { type Database, openSqlite } from "@cloche/gateway";
import { GuardedStore, OwnerOfStore, openBlobStore } from "@cloche/host";
import { ClocheError } from "@cloche/protocol";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { Ownership, type OwnershipParts, takeOver } from "./ownership.ts";

const minute = 60_000;

/** Time that moves when a test says so; who sleeps wakes when it is due. */
class ManualClock implements Clock {
  #nowMs = Date.UTC(2026, 0, 1);
  #sleepers: { atMs: number; wake: () => void }[] = [];

  nowMs(): number {
    return this.#nowMs;
  }

  monotonicMs(): number {
    return this.#nowMs;
  }

  sleep(ms: number, signal?: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#sleepers.push({ atMs: this.#nowMs + ms, wake: resolve });
      signal?.addEventListener("abort", () => reject(signal.reason), { once: true });
    });
  }

  advance(ms: number): void {
    this.#nowMs += ms;
    const due = this.#sleepers.filter(({ atMs }) => atMs <= this.#nowMs);
    this.#sleepers = this.#sleepers.filter(({ atMs }) => atMs > this.#nowMs);
    for (const { wake } of due) wake();
  }
}
let folder: string;
let clock: ManualClock;
let database: Database;
/** Whether checkpoint storage can be reached. */
let isReachable: boolean;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "cloche-ownership-"));
  clock = new ManualClock();
  database = await openSqlite(join(folder, "shared.db"), clock);
  isReachable = true;
});
afterEach(async () => {
  await database.close();
  await rm(folder, { recursive: true });
});

/** A service of the home `name` on the shared database and the store `store`. */
async function service(name: string, store = "store") {
  const blobs = await openBlobStore(join(folder, store), "", {});
  const reached = new Proxy(blobs, {
    get: (target, key) =>
      isReachable
        ? Reflect.get(target, key).bind(target)
        : () => Promise.reject(new ClocheError("unavailable", "storage is down")),
  });
  const guarded = new GuardedStore(reached);
  const parts: OwnershipParts = {
    home: join(folder, name),
    database: { owned: database.ownership, name: "the database D", setting: "CLOCHE_DATABASE_URL" },
    store: { owned: new OwnerOfStore(reached, clock), name: "the store S", setting: "CLOCHE_BLOB_URL" },
    guard: (why) => guarded.guard(why),
    clock,
    log: silentLog,
    randomBytes,
  };
  const lost: string[] = [];
  return {
    parts,
    blobs: guarded,
    lost,
    claimAndDie: () => Ownership.claim(parts),
    claim: async () => {
      const ownership = await Ownership.claim(parts);
      ownership.watch((why) => lost.push(why));
      return ownership;
    },
  };
}

const put = (blobs: GuardedStore): Promise<void> => blobs.put("packs/x", Buffer.from("x"));

describe("a second service", () => {
  it("of another home is refused, told whose they are and what to do, also when the first has stopped", async () => {
    const first = await service("one");
    const owned = await first.claim();
    await put(first.blobs);
    const second = await service("two", "another-store");
    const refusal =
      /the database D belongs to another installation: installation ins-\w{20}, home .*\/one on host .+ \(last seen 2026-.+destroy each other's sandboxes: set CLOCHE_DATABASE_URL .*npx cloche take-over/;
    await expect(second.claim()).rejects.toThrow(refusal);
    await expect(put(second.blobs)).rejects.toMatchObject({ code: "unavailable" });
    await owned.release();
    await expect(second.claim()).rejects.toThrow(/belongs to another installation.*\(stopped\)/);
  });

  it("that shares only the storage is refused, and leaves the database it found as it was", async () => {
    const first = await service("one");
    await (await first.claim()).release();
    await database.ownership.removeOwner((await database.ownership.owner())?.session ?? "");
    const second = await service("two");
    await expect(second.claim()).rejects.toThrow(/the store S belongs to .*destroy each other's checkpoints/);
    expect(await database.ownership.owner()).toBeUndefined();
  });

  it("loses the race for the storage to one that was quicker, and gives the database back", async () => {
    const first = await service("one");
    const { owned } = first.parts.store;
    const late: OwnershipParts = {
      ...first.parts,
      store: {
        ...first.parts.store,
        owned: {
          owner: () => owned.owner(),
          replaceOwner: async () => false,
          ownerSeen: (session, nowMs) => owned.ownerSeen(session, nowMs),
          removeOwner: (session) => owned.removeOwner(session),
        },
      },
    };
    await expect(Ownership.claim(late)).rejects.toThrow(/another service claims the store S at this moment/);
    expect(await database.ownership.owner()).toBeUndefined();
  });
});

describe("the same installation", () => {
  it("starts again at once after a stop and after a kill, also in a home that was moved", async () => {
    const one = await service("one");
    await one.claim(); // and killed
    const again = await one.claim();
    await again.release();
    const moved = await service("one");
    moved.parts.home = join(folder, "elsewhere");
    await copyInstallation(one.parts.home, moved.parts.home);
    await (await moved.claim()).release();
  });

  it("is refused in a copy of its home while it lives", async () => {
    const one = await service("one");
    await one.claim();
    const copy = await service("two");
    await copyInstallation(one.parts.home, copy.parts.home);
    await expect(copy.claim()).rejects.toThrow(
      /in use by .*\/one on host.*stop that service first.*in 180 s/,
    );
    for (let minutes = 1; minutes <= 4; minutes += 1) {
      clock.advance(minute);
      const { owned } = one.parts.store;
      await expect.poll(async () => (await owned.owner())?.seenAtMs).toBe(clock.nowMs());
    }
    await expect(copy.claim()).rejects.toThrow(/in use by/); // it said that it lives
  });

  it("is let into a copy of its home when it was silent for three minutes", async () => {
    const one = await service("one");
    await one.claimAndDie();
    const copy = await service("two");
    await copyInstallation(one.parts.home, copy.parts.home);
    clock.advance(3 * minute - 1);
    await expect(copy.claim()).rejects.toThrow(/in use by .* in 1 s/);
    clock.advance(1);
    await copy.claim();
  });

  it("takes a database and a store that have no owner", async () => {
    const one = await service("one");
    await (await one.claim()).release();
    expect((await database.ownership.owner())?.home).toBe(one.parts.home);
    expect((await one.parts.store.owned.owner())?.home).toBe(one.parts.home);
  });
});

describe("storage that cannot be reached at the start", () => {
  it("is claimed when it can be, and nothing is written before", async () => {
    isReachable = false;
    const one = await service("one");
    await one.claim();
    isReachable = true;
    await expect(put(one.blobs)).rejects.toThrow(/not known yet whose/);
    clock.advance(minute);
    await expect.poll(() => put(one.blobs).then(() => "written", String)).toBe("written");
  });

  it("and turns out to be another's is never written to", async () => {
    const other = await service("other");
    await (await other.claim()).release();
    await database.ownership.removeOwner((await database.ownership.owner())?.session ?? "");
    isReachable = false;
    const one = await service("one");
    await one.claim();
    isReachable = true;
    clock.advance(minute);
    await expect.poll(() => put(one.blobs).then(() => "written", String)).toMatch(/belongs to another/);
    expect(one.lost).toEqual([]);
  });
});

describe("take-over", () => {
  it("is refused while the other lives, and else lets this home in", async () => {
    const gone = await service("one");
    const owned = await gone.claim();
    const anew = await service("two");
    await expect(takeOver(anew.parts, false)).rejects.toThrow(/in use by .*--force/);
    await owned.release();
    const lines = await takeOver(anew.parts, false);
    expect(lines).toEqual([
      expect.stringMatching(/^the database D is this installation's now; before, installation ins-.*\/one/),
      expect.stringMatching(/^the store S is this installation's now; before, installation ins-.*\/one/),
    ]);
    await anew.claim();
    await expect(gone.claim()).rejects.toThrow(/belongs to another installation.*\/two/);
  });

  it("by force ends the service that was replaced within a minute, and shuts its storage", async () => {
    const first = await service("one");
    await first.claim();
    const second = await service("two");
    await takeOver(second.parts, true);
    await second.claim();
    clock.advance(minute);
    await expect.poll(() => first.lost).toHaveLength(1);
    expect(first.lost[0]).toMatch(/the database D was taken over: it is used by .*\/two/);
    await expect(put(first.blobs)).rejects.toThrow(/was taken over/);
    expect(second.lost).toEqual([]);
    await put(second.blobs);
  });

  it("says what is this home's already", async () => {
    const one = await service("one");
    await (await one.claim()).release();
    expect(await takeOver(one.parts, false)).toEqual([
      "the database D is this installation's already",
      "the store S is this installation's already",
    ]);
  });
});

async function copyInstallation(from: string, to: string): Promise<void> {
  await mkdir(to, { recursive: true });
  await cp(join(from, "installation.json"), join(to, "installation.json"));
}

describe("a cluster", () => {
  const ofCluster = async (name: string, cluster: string) => {
    const one = await service(name);
    return { ...one, claim: () => Ownership.claim({ ...one.parts, cluster }) };
  };
  const id = "ins-aaaaaaaaaaaaaaaaaaaa";

  it("has its places for all its gateways, at any time, and lets no other have them", async () => {
    const [one, two] = [await ofCluster("one", id), await ofCluster("two", id)];
    const owned = await Promise.all([one.claim(), two.claim()]);
    await put(one.blobs);
    await put(two.blobs);
    const third = await ofCluster("three", id);
    owned.push(await third.claim());
    // A gateway that stops takes nothing from the others.
    await owned.shift()?.release();
    expect((await database.ownership.owner())?.seenAtMs).toBeGreaterThan(0);
    await expect((await service("single")).claim()).rejects.toThrow(/belongs to another installation/);
    await expect((await ofCluster("four", "ins-bbbbbbbbbbbbbbbbbbbb")).claim()).rejects.toThrow(
      /belongs to another installation: installation ins-a+, home of a cluster on host its gateways/,
    );
    for (const rest of owned) await rest.release();
  });

  it("takes nothing that a single machine has", async () => {
    await (await (await service("single")).claim()).release();
    await expect((await ofCluster("one", id)).claim()).rejects.toThrow(/belongs to another installation/);
  });
});
