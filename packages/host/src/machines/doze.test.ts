import { describe, expect, it } from "vitest";
import { type Activity, Doze } from "./doze.ts";

const id = "sbx-a";
const activity: Activity = {
  lastActivityUnixMs: 1_000,
  runningExecs: 0,
  openRequests: 0,
  cpuMs: 5,
  processes: 0,
  activeServices: 0,
};
const quiet = async (): Promise<boolean> => true;

function world() {
  const seen: string[] = [];
  const state = { failsAt: "", waits: Promise.resolve() };
  const doze = new Doze({
    freeze: async (_id, frozen) => {
      const what = frozen ? "frozen" : "thawed";
      await state.waits;
      if (state.failsAt === what) throw new Error(what);
      seen.push(what);
    },
  });
  return { doze, seen, state };
}

describe("Doze", () => {
  it("is frozen between its announcement and the first who wants it", async () => {
    const { doze, seen } = world();
    doze.announce(id, activity);
    expect(doze.activityOf(id)).toBeUndefined();
    await doze.freeze(id, quiet);
    expect(doze.activityOf(id)).toBe(activity);
    expect(doze.dozing).toBe(1);
    await Promise.all([doze.rouse(id), doze.rouse(id)]);
    await doze.rouse(id);
    expect(seen).toEqual(["frozen", "thawed"]);
    expect(doze.dozing).toBe(0);
  });

  it("is not frozen when something has happened, or when that is not known", async () => {
    const { doze, seen } = world();
    doze.announce(id, activity);
    await doze.freeze(id, async () => false);
    doze.announce(id, activity);
    const unknown = doze.freeze(id, () => Promise.reject(new Error("no answer")));
    await expect(unknown).rejects.toThrow("no answer");
    expect([seen, doze.isAnnounced(id)]).toEqual([[], false]);
  });

  it("is not frozen for an announcement that was taken back", async () => {
    const { doze, seen } = world();
    doze.announce(id, activity);
    await doze.rouse(id);
    await doze.freeze(id, quiet);
    expect(seen).toEqual([]);
  });

  it.each(["rouse", "hold"] as const)(
    "a %s that comes while it is asked whether it is quiet wins",
    async (how) => {
      const { doze, seen } = world();
      doze.announce(id, activity);
      await doze.freeze(id, async () => {
        await doze[how](id);
        return true;
      });
      expect([seen, doze.isAnnounced(id)]).toEqual([[], false]);
    },
  );

  it("one who wants it while it is being frozen waits until it is thawed", async () => {
    const { doze, seen, state } = world();
    const freezer = Promise.withResolvers<void>();
    state.waits = freezer.promise;
    doze.announce(id, activity);
    const freezing = doze.freeze(id, quiet);
    await new Promise((resolve) => setImmediate(resolve));
    const held = doze.hold(id).then((release) => {
      seen.push("held");
      return release;
    });
    freezer.resolve();
    await freezing;
    (await held)();
    expect(seen).toEqual(["frozen", "thawed", "held"]);
  });

  it("does not doze while anybody holds it", async () => {
    const { doze } = world();
    const [first, second] = [await doze.hold(id), await doze.hold(id)];
    doze.announce(id, activity);
    first();
    first();
    doze.announce(id, activity);
    expect(doze.isAnnounced(id)).toBe(false);
    second();
    doze.announce(id, activity);
    expect(doze.isAnnounced(id)).toBe(true);
  });

  it("one that could not be thawed is thawed by the next", async () => {
    const { doze, seen, state } = world();
    doze.announce(id, activity);
    await doze.freeze(id, quiet);
    state.failsAt = "thawed";
    await expect(doze.hold(id)).rejects.toThrow("thawed");
    state.failsAt = "";
    await doze.rouse(id);
    expect(seen).toEqual(["frozen", "thawed"]);
    // The machine is no longer held.
    doze.announce(id, activity);
    expect(doze.isAnnounced(id)).toBe(true);
  });

  it("one that could not be frozen is awake", async () => {
    const { doze, seen, state } = world();
    state.failsAt = "frozen";
    doze.announce(id, activity);
    await expect(doze.freeze(id, quiet)).rejects.toThrow("frozen");
    expect(seen).toEqual(["thawed"]);
  });

  it("forgets one whose processes are gone", async () => {
    const { doze, seen } = world();
    doze.announce(id, activity);
    await doze.freeze(id, quiet);
    doze.forget(id);
    doze.forget(id);
    await doze.rouse(id);
    expect(seen).toEqual(["frozen"]);
  });
});
