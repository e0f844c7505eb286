import { HostStorageService } from "@cloche/protocol/host-registry";
import { type Client, Code, ConnectError, createClient, createRouterTransport } from "@connectrpc/connect";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { type Database, openSqlite } from "../database/database.ts";
import { FakeClock } from "../testing/fake-clock.ts";
import { storageService } from "./storage-service.ts";
import { namedCheckpoints } from "./team-checkpoints.ts";

let clock: FakeClock;
let db: Database;
beforeEach(async () => {
  clock = new FakeClock();
  db = await openSqlite(":memory:", clock);
  await db.teams.insert({ id: "team-a", name: "A", createdAtMs: 0 });
});
afterEach(() => db.close());

const as = (hostId: string | undefined): Client<typeof HostStorageService> =>
  createClient(
    HostStorageService,
    createRouterTransport((router) => {
      router.service(
        HostStorageService,
        storageService(db, () => hostId),
      );
    }),
  );
const codeOf = (call: Promise<unknown>): Promise<Code | undefined> =>
  call.then(
    () => undefined,
    (error: unknown) => ConnectError.from(error).code,
  );

const idOf = (n: number): string => `ckpt-${String(n).padStart(20, "0")}`;
const aPack = (letter: string) => ({ id: `pack-${letter.repeat(20)}`, bytes: 7 });
function checkpoint(n: number, fields: object = {}) {
  const header = {
    id: idOf(n),
    name: `c${n}`,
    team_id: "team-a",
    sandbox_id: "sbx-1",
    created_at: `2026-01-01T00:00:0${n}.000Z`,
    size_bytes: 100,
    runtime: "gvisor",
    disk_mb: 1_024,
    ...fields,
  };
  const { id, team_id: teamId, sandbox_id: sandboxId } = header;
  return {
    id: idOf(n),
    teamId,
    sandboxId,
    headerJson: JSON.stringify({ ...header, id }),
    packs: [aPack("p")],
  };
}
async function named(n: number): Promise<void> {
  await as("host-1").holdObject({ name: `checkpoints/${idOf(n)}` });
  await as("host-1").nameCheckpoint({ checkpoint: checkpoint(n) });
}

describe("what lies in storage", () => {
  it("is named, found and dropped by hosts alone", async () => {
    const nobody = as(undefined);
    const calls = [
      nobody.holdObject({ name: `checkpoints/${idOf(1)}` }),
      nobody.releaseObject({ name: `checkpoints/${idOf(1)}` }),
      nobody.nameCheckpoint({ checkpoint: checkpoint(1) }),
      nobody.findCheckpoint({ teamId: "team-a", id: idOf(1) }),
      nobody.listCheckpoints({ teamId: "team-a" }),
      nobody.countCheckpoints({ teamId: "team-a" }),
      nobody.dropCheckpoint({ teamId: "team-a", id: idOf(1) }),
      nobody.claimSweep({}),
      nobody.findUnnamed({ keys: [] }),
      nobody.reportSwept({ keys: [] }),
    ];
    expect(calls).toHaveLength(Object.keys(HostStorageService.method).length);
    for (const call of calls) expect(await codeOf(call)).toBe(Code.PermissionDenied);
  });

  it.each(["checkpoints/x", "images/../a", "packs/pack-1", "owner", ""])(
    "has no name such as %j",
    async (name) => {
      expect(await codeOf(as("host-1").holdObject({ name }))).toBe(Code.InvalidArgument);
    },
  );

  it.each([
    ["no JSON", { headerJson: "{" }],
    ["null", { headerJson: "null" }],
    ["another id", { headerJson: checkpoint(2).headerJson }],
    ["another team", { headerJson: checkpoint(1, { team_id: "team-b" }).headerJson }],
    ["no time", { headerJson: checkpoint(1, { created_at: "yesterday" }).headerJson }],
    ["no size", { headerJson: checkpoint(1, { size_bytes: -1 }).headerJson }],
    ["a pack of another form", { packs: [{ id: "../owner", bytes: 1 }] }],
  ])("is refused with %s", async (_, fields) => {
    await as("host-1").holdObject({ name: `checkpoints/${idOf(1)}` });
    const call = as("host-1").nameCheckpoint({ checkpoint: { ...checkpoint(1), ...fields } });
    expect(await codeOf(call)).toBe(Code.InvalidArgument);
  });

  it("is found by every host, in pages, with what was said of it", async () => {
    for (const n of [1, 2, 3]) await named(n);
    const other = as("host-2");
    const found = await other.findCheckpoint({ teamId: "team-a", id: idOf(2) });
    expect(found).toMatchObject({ ...checkpoint(2), packs: [aPack("p")] });
    const first = await other.listCheckpoints({ teamId: "team-a", limit: 2 });
    expect(first.checkpoints.map(({ id }) => id)).toEqual([idOf(3), idOf(2)]);
    const next = { teamId: "team-a", limit: 2, pageToken: first.nextPageToken };
    const last = await other.listCheckpoints(next);
    expect([last.checkpoints.map(({ id }) => id), last.nextPageToken]).toEqual([[idOf(1)], ""]);
    expect(await other.countCheckpoints({ teamId: "team-a" })).toMatchObject({ count: 3n, bytes: 300 });
    expect((await other.dropCheckpoint({ teamId: "team-a", id: idOf(2) })).freedBytes).toBe(0);
    expect(await codeOf(other.findCheckpoint({ teamId: "team-a", id: idOf(2) }))).toBe(Code.NotFound);
  });

  it("is swept by one host, an hour after it was dropped", async () => {
    await named(1);
    await as("host-2").dropCheckpoint({ teamId: "team-a", id: idOf(1) });
    expect(await as("host-1").claimSweep({})).toMatchObject({ isClaimed: true, garbage: [], listDue: true });
    expect(await as("host-2").claimSweep({})).toMatchObject({ isClaimed: false });
    await clock.advance(3_600_000);
    const { garbage } = await as("host-2").claimSweep({});
    expect(garbage.toSorted()).toEqual([`checkpoints/${idOf(1)}`, `packs/${aPack("p").id}`]);
    await as("host-2").reportSwept({ keys: garbage, listed: true });
    expect(await as("host-2").claimSweep({})).toMatchObject({ garbage: [], listDue: false });
  });
});

it.each([
  { name: 5 },
  { runtime: {} },
  { disk_mb: -1 },
  { disk_mb: 1e300 },
  { running_services: Array.from({ length: 10_000 }, () => "a-service-of-a-hostile-agent") },
])("a header that a list of the team could not answer is refused", async (fields) => {
  await as("host-1").holdObject({ name: `checkpoints/${idOf(1)}` });
  const call = as("host-1").nameCheckpoint({ checkpoint: checkpoint(1, fields) });
  expect(await codeOf(call)).toBe(Code.InvalidArgument);
});

it("a team's own calls are answered from the names, without a host", async () => {
  for (const n of [1, 2]) await named(n);
  const call = { signal: new AbortController().signal, requestId: "" };
  const checkpoints = namedCheckpoints(db.storedNames);
  const query = { teamId: "team-a", sandboxId: "", limit: 1, pageToken: "" };
  const page = await checkpoints.checkpoints(query, call);
  expect(page.checkpoints).toMatchObject([
    {
      id: idOf(2),
      name: "c2",
      sizeBytes: 100,
      runtime: "gvisor",
      diskMb: 1_024,
      visible: true,
      automatic: false,
    },
  ]);
  const rest = await checkpoints.checkpoints({ ...query, pageToken: page.nextPageToken }, call);
  expect(rest.checkpoints.map(({ id }) => id)).toEqual([idOf(1)]);
  expect(await checkpoints.checkpoint("team-b", idOf(1), call)).toBeUndefined();
  await expect(checkpoints.deleteCheckpoint("team-b", idOf(1), call)).rejects.toMatchObject({
    code: "not_found",
  });
  await checkpoints.deleteCheckpoint("team-a", idOf(1), call);
  expect(await checkpoints.checkpoint("team-a", idOf(1), call)).toBeUndefined();
});
