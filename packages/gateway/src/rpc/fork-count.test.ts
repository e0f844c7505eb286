import { Code } from "@connectrpc/connect";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { MachinePhase } from "@cloche/protocol/host";
import { quiet } from "../testing/fake-clock.ts";
import { type Answer, type GatewayFixture, openFixture } from "../testing/gateway-fixture.ts";

let f: GatewayFixture;
let source: string;
beforeEach(async () => {
  f = await openFixture({ config: { limits: { sandboxes: 6 } } });
  source = (await f.call("CreateSandbox", { name: "source", metadata: { a: "b" } })).body.sandbox.id;
});
afterEach(() => f.close());

const R = "SANDBOX_STATE_RUNNING";
const fork = (body: object = {}): Promise<Answer> =>
  f.call("ForkSandbox", { source_sandbox_id: source, ...body });
const all = async (): Promise<{ id: string; name: string; state: string }[]> =>
  (await f.call("ListSandboxes", { order_by: "created_at" })).body.sandboxes;
const clones = async () => (await all()).filter(({ id }) => id !== source);
const forksAsked = (): number => f.host.calls.filter((call) => call.startsWith("forkMachine")).length;

describe("ForkSandbox with count", () => {
  it("answers so many clones, each with a token of its own, of one group that is then ended", async () => {
    const groups: number[] = [];
    const set = f.host.forkGroups.set.bind(f.host.forkGroups);
    f.host.forkGroups.set = (...args) => {
      groups.push(1);
      return set(...args);
    };
    const { status, body } = await fork({ count: 4, name: "c" });
    expect(status).toBe(200);
    expect(body.sandboxes).toHaveLength(4);
    expect(body.sandboxes.map(({ name }: { name: string }) => name)).toEqual(["c-1", "c-2", "c-3", "c-4"]);
    for (const one of body.sandboxes)
      expect(one).toMatchObject({ state: R, source_sandbox_id: source, metadata: { a: "b" } });
    expect(body.sandbox).toEqual(body.sandboxes[0]);
    expect(body.data_plane_tokens).toHaveLength(4);
    expect(new Set(body.data_plane_tokens).size).toBe(4);
    expect(body.data_plane_token).toBe(body.data_plane_tokens[0]);
    const audiences = body.data_plane_tokens.map(
      (jwt: string) => JSON.parse(Buffer.from(jwt.split(".")[1] ?? "", "base64url").toString()).aud,
    );
    expect(audiences).toEqual(body.sandboxes.map(({ id }: { id: string }) => id));
    expect(groups).toHaveLength(1);
    await expect.poll(() => f.host.forkGroups.size).toBe(0);
  });

  it("of 1, or left out, is a fork as ever, with its name", async () => {
    for (const body of [{ name: "one" }, { name: "one", count: 1 }]) {
      const answer = await fork(body);
      expect(answer.body.sandboxes).toEqual([answer.body.sandbox]);
      expect(answer.body.sandbox.name).toBe("one");
      expect(answer.body.data_plane_tokens).toEqual([answer.body.data_plane_token]);
    }
    const create = await f.call("CreateSandbox");
    expect(Object.keys(create.body)).not.toContain("sandboxes");
  });

  it("generates names where none is given, also from a checkpoint and of a suspended source", async () => {
    f.host.addCheckpoint({ id: "ckpt-00000000000000000000", teamId: f.teamId, sandboxId: source });
    const made = await fork({ count: 2, checkpoint_id: "ckpt-00000000000000000000" });
    expect(new Set(made.body.sandboxes.map(({ name }: { name: string }) => name)).size).toBe(2);
    expect(forksAsked()).toBe(0);
    f.host.set(source, MachinePhase.SUSPENDED);
    await f.call("SuspendSandbox", { id: source });
    const suspended = await fork({ count: 2 });
    expect(suspended.body.sandboxes).toHaveLength(2);
    expect(f.host.phase(source)).toBe(MachinePhase.SUSPENDED);
  });

  it.each([
    [{ count: 0 }, "count is 0; it must be a whole number from 1 to 100"],
    [{ count: 101 }, "count is 101; it must be a whole number from 1 to 100"],
    [{ count: 10, name: "n".repeat(62) }, /^name is "n+"; it must be at most 61 characters with count 10$/],
  ])("refuses %j", async (body, message) => {
    const answer = await fork(body);
    expect(answer.body).toMatchObject({
      code: "invalid_argument",
      message: typeof message === "string" ? message : expect.stringMatching(message),
    });
    expect(await clones()).toEqual([]);
  });

  it("is refused as a whole where there is no room for all", async () => {
    const { status, body } = await fork({ count: 6 });
    expect([status, body.code]).toEqual([429, "resource_exhausted"]);
    expect(body.message).toContain("the team has 1 sandboxes, and 6 more are asked for; at most 6");
    expect(await clones()).toEqual([]);
    expect(forksAsked()).toBe(0);
    expect((await fork({ count: 5 })).status).toBe(200);
  });

  it("shows none as RUNNING before the machines of all run", async () => {
    f.host.fault("forkMachine", "hang");
    const answer = fork({ count: 3 });
    await expect.poll(() => f.host.machines.size).toBe(3);
    await quiet();
    expect((await clones()).map(({ state }) => state)).toEqual(Array(3).fill("SANDBOX_STATE_CREATING"));
    // The hanging call fails for a passing reason, and is tried again.
    f.host.letGo();
    await f.clock.advance(1_000);
    expect((await answer).body.sandboxes.map(({ state }: { state: string }) => state)).toEqual([R, R, R]);
  });

  it.each([Code.Internal, Code.ResourceExhausted])(
    "leaves none when one fails while its caller waits, code %s",
    async (code) => {
      const key = { idempotency_key: "k" };
      f.host.fault("forkMachine", "before", code, 1, "one too many");
      const { status, body } = await fork({ count: 4, ...key });
      expect(status).toBeGreaterThanOrEqual(400);
      expect(body.message).toBe("one too many");
      expect(await clones()).toEqual([]);
      expect([...f.host.machines.keys()]).toEqual([source]);
      await expect.poll(() => f.host.forkGroups.size).toBe(0);
      // The idempotency key is free again.
      expect((await fork({ count: 2, ...key })).body.sandboxes).toHaveLength(2);
    },
  );

  it("leaves none when one fails and the database's answer to that is lost", async () => {
    const { operations } = f.database;
    const turnBack = operations.turnBack.bind(operations);
    operations.turnBack = async (...args) => {
      operations.turnBack = turnBack;
      await turnBack(...args);
      throw new Error("the connection broke");
    };
    f.host.fault("forkMachine", "before", Code.Internal, 1, "one too many");
    const answer = fork({ count: 3 });
    await expect.poll(() => f.host.machines.size).toBe(3);
    await quiet();
    for (let second = 0; second < 5; second += 1) await f.clock.advance(1_000);
    expect((await answer).status).toBeGreaterThanOrEqual(400);
    expect(await clones()).toEqual([]);
    expect([...f.host.machines.keys()]).toEqual([source]);
  });

  it("leaves all in ERROR when one fails after its caller stopped waiting", async () => {
    f.host.fault("forkMachine", "hang");
    const answer = fork({ count: 3, idempotency_key: "k" });
    await expect.poll(() => f.host.machines.size).toBe(3);
    await f.clock.advance(10_000);
    const { body } = await answer;
    expect(body.sandboxes.map(({ state }: { state: string }) => state)).toEqual(
      Array(3).fill("SANDBOX_STATE_CREATING"),
    );
    f.host.fault("forkMachine", "before", Code.Internal, 9, "no space");
    f.host.letGo();
    await f.clock.advance(5_000);
    await expect
      .poll(async () => (await clones()).map(({ state }) => state))
      .toEqual(Array(3).fill("SANDBOX_STATE_ERROR"));
    expect((await f.call("GetSandbox", { id: body.sandbox.id })).body.sandbox.error_message).toBe("no space");
    expect([...f.host.machines.keys()]).toEqual([source]);
    // A repeated call gets the same sandboxes.
    const again = await fork({ count: 3, idempotency_key: "k" });
    expect(again.body.sandboxes.map(({ id }: { id: string }) => id)).toEqual(
      body.sandboxes.map(({ id }: { id: string }) => id),
    );
    expect(again.body.data_plane_tokens).toEqual(["", "", ""]);
  });

  it("goes on without one that its owner deletes meanwhile", async () => {
    f.host.fault("forkMachine", "hang");
    const answer = fork({ count: 3 });
    await expect.poll(() => f.host.machines.size).toBe(3);
    const hung = (await clones()).find(({ id }) => !f.host.machines.has(id));
    await f.call("DeleteSandbox", { id: hung?.id });
    expect((await answer).body).toMatchObject({ code: "aborted" });
    await expect.poll(async () => (await clones()).map(({ state }) => state)).toEqual([R, R]);
  });

  it("goes on over a restart, as one", async () => {
    f.host.fault("forkMachine", "hang");
    const answer = fork({ count: 3, idempotency_key: "k" });
    await expect.poll(() => f.host.machines.size).toBe(3);
    await f.restart();
    const ids = (await answer).body.sandboxes.map(({ id }: { id: string }) => id);
    await expect.poll(async () => (await clones()).map(({ state }) => state)).toEqual([R, R, R]);
    const again = await fork({ count: 3, idempotency_key: "k" });
    expect(again.body.sandboxes.map(({ id }: { id: string }) => id)).toEqual(ids);
    expect(await clones()).toHaveLength(3);
  });
});
