import { silentLog } from "@cloche/base";
import { type RouteEvent, RouteEvent_Kind, RouteService } from "@cloche/protocol/edge";
import { createClient, createRouterTransport } from "@connectrpc/connect";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { type Change, ChangeLog, signalInProcess } from "../database/change-log.ts";
import { type Database, openSqlite } from "../database/database.ts";
import { anAuditEntry, anOperation, aSandbox } from "../testing/database-records.ts";
import { FakeClock, quiet } from "../testing/fake-clock.ts";
import { World } from "../testing/world.ts";
import { ChangeFollower } from "./change-follower.ts";
import { Records } from "./records.ts";

const R = "SANDBOX_STATE_RUNNING";

describe("two gateways", () => {
  let world: World;
  let other: World;
  beforeEach(async () => {
    world = await World.open("a");
    other = await world.join("b");
  });
  afterEach(async () => {
    await other.kill();
    await world.close();
  });

  it("tell their edges at once what either writes", async () => {
    const seen: RouteEvent[] = [];
    const stop = new AbortController();
    const { routeService } = other.gateway;
    const transport = createRouterTransport(({ service }) => service(RouteService, routeService));
    const stream = createClient(RouteService, transport).watchRoutes({}, { signal: stop.signal });
    const watching = (async () => {
      for await (const event of stream) seen.push(event);
    })().catch(() => undefined);
    await quiet();
    const { id } = (await world.call("CreateSandbox")).body.sandbox;
    await quiet();
    expect(seen.at(-1)).toMatchObject({
      kind: RouteEvent_Kind.SET,
      route: { sandboxId: id, state: R, busy: false },
    });
    await world.call("DeleteSandbox", { id });
    await quiet();
    expect(seen.at(-1)).toMatchObject({ kind: RouteEvent_Kind.REMOVE, route: { sandboxId: id } });
    stop.abort();
    await watching;
  });

  it("answer who waits for what the other does", async () => {
    const body = { idempotency_key: "once" };
    world.host.fault("createMachine", "hang");
    const first = world.call("CreateSandbox", body);
    await quiet();
    const second = other.call("CreateSandbox", body);
    await world.clock.advance(1_000);
    world.host.letGo();
    // The first gateway tries its host call again after a tenth of a second.
    await world.clock.advance(200);
    const [a, b] = await Promise.all([first, second]);
    expect([a.body.sandbox.state, b.body.sandbox.state]).toEqual([R, R]);
    expect(b.body.sandbox.id).toBe(a.body.sandbox.id);
  });
});

describe("the log", () => {
  const clock = new FakeClock();
  /** Sequence numbers that are committed by now. */
  let there: number[];
  let asked: number[][];
  let heard: string[];
  let allRead: number;
  let follower: ChangeFollower;
  const follow = async (): Promise<void> => {
    const changes: Pick<ChangeLog, "listen" | "newest" | "read" | "prune"> = {
      listen: signalInProcess().listen,
      newest: async (limit) => there.toSorted((a, b) => a - b).slice(-limit),
      async read(last, missing) {
        asked.push([...missing]);
        const found = there.filter((one) => one > last || missing.includes(one)).toSorted((a, b) => a - b);
        return found.map((sequence): Change => ({ sequence, sandboxId: `s${sequence}` }));
      },
      prune: async () => undefined,
    };
    follower = new ChangeFollower({
      changeLog: changes as ChangeLog,
      clock,
      log: silentLog,
      onChanged: async (ids) => void heard.push(...ids),
      readAll: async () => void (allRead += 1),
    });
    await follower.start();
    await quiet();
  };
  beforeEach(() => {
    there = [];
    asked = [];
    heard = [];
    allRead = 0;
  });
  afterEach(() => follower.close());

  it("loses nothing that is committed out of order, before the start either", async () => {
    there = [4, 7];
    await follow();
    expect(allRead).toBe(1);
    there.push(5, 9);
    await clock.advance(1_000);
    expect(heard).toEqual(["s5", "s9"]);
    there.push(8, 6);
    await clock.advance(1_000);
    expect(heard).toEqual(["s5", "s9", "s6", "s8"]);
    await clock.advance(1_000);
    expect(heard).toHaveLength(4);
  });

  it("is asked for a minute for what was rolled back", async () => {
    there = [1];
    await follow();
    there.push(3);
    await clock.advance(60_000);
    expect(asked.at(-1)).toEqual([2]);
    await clock.advance(3_000);
    expect(asked.at(-1)).toEqual([]);
  });

  it("is left and all is read anew, where nothing was looked at for long", async () => {
    await follow();
    await clock.advance(10_000);
    expect(allRead).toBe(1);
    await clock.jump(31 * 60_000);
    await quiet();
    expect(allRead).toBe(2);
  });
});

it("a record that is told while it is read for another's change is read again", async () => {
  const db: Database = await openSqlite(":memory:", new FakeClock());
  await db.teams.insert({ id: "team-a", name: "A", createdAtMs: 0 });
  const record = aSandbox();
  const begin = anOperation({ sandboxId: record.id });
  await db.sandboxes.insert([{ record, begin, audit: anAuditEntry() }]);
  const records = new Records(db.sandboxes, () => 0);
  const told: (string | undefined)[] = [];
  records.listen((_id, found) => told.push(found?.name));
  const some = db.sandboxes.some.bind(db.sandboxes);
  const isHeld = Promise.withResolvers<void>();
  db.sandboxes.some = async (ids) => {
    const found = await some(ids);
    await isHeld.promise;
    return found;
  };
  const hearing = records.refresh([record.id]);
  await quiet();
  const changed = await records.change(record, { name: "newer" });
  if (changed === undefined) throw new Error("not written");
  await records.remove(changed, { end: begin });
  isHeld.resolve();
  await hearing;
  expect(told).toEqual(["newer", undefined, undefined]);
  await db.close();
});
