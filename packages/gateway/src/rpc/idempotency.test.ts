import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { Code } from "@connectrpc/connect";
import { quiet } from "../testing/fake-clock.ts";
import { type Answer, type GatewayFixture, openFixture, postCall } from "../testing/gateway-fixture.ts";

let f: GatewayFixture;
beforeEach(async () => {
  f = await openFixture({ config: { limits: { sandboxes: 3 } } });
});
afterEach(() => f.close());

const key = { idempotency_key: "order 17" };
const hourMs = 3_600_000;

const create = async (body: object = key): Promise<Answer["body"]> => {
  const answer = await f.call("CreateSandbox", body);
  expect(answer).toMatchObject({ status: 200 });
  return answer.body;
};
const refused = async (method: string, body: object): Promise<string[]> => {
  const { status, body: error } = await f.call(method, body);
  expect(status).toBeGreaterThanOrEqual(400);
  return [error.code, error.message];
};
const count = async (): Promise<number> => (await f.call("ListSandboxes")).body.sandboxes.length;

describe("idempotency_key", () => {
  it("answers the same sandbox again, as it now is, with a fresh token", async () => {
    const first = await create({ ...key, name: "one", metadata: { a: "1", b: "2" } });
    await f.clock.advance(60_000);
    await f.call("UpdateSandbox", { id: first.sandbox.id, name: "renamed" });
    const again = await create({ metadata: { b: "2", a: "1" }, name: "one", ...key });
    expect(again.sandbox).toMatchObject({ id: first.sandbox.id, name: "renamed" });
    expect(again.data_plane_token).not.toBe(first.data_plane_token);
    expect(again.data_plane_token_expires_at_unix).toBe(first.data_plane_token_expires_at_unix + 60);
    expect(await count()).toBe(1);
  });

  it("is refused with other fields, and for another method, whatever else is asked for", async () => {
    const { sandbox } = await create();
    const words = ["already_exists", expect.stringContaining('idempotency_key: "order 17"')];
    expect(await refused("CreateSandbox", { ...key, name: "x" })).toEqual(words);
    // The fields are compared as sent: 2 is the default, but was not sent before.
    expect(await refused("CreateSandbox", { ...key, cpus: 2 })).toEqual(words);
    expect(await refused("ForkSandbox", { ...key, source_sandbox_id: sandbox.id })).toEqual(words);
    expect(await count()).toBe(1);
  });

  it.each([
    ["", '""'],
    ["a".repeat(129), "aaa"],
    ["a\0b", "a\\u0000b"],
  ])("names the field and the value %j when it is none", async (wrong, shown) => {
    for (const [method, body] of [
      ["CreateSandbox", {}],
      ["ForkSandbox", { source_sandbox_id: "sbx-00000000000000000000" }],
    ] as const) {
      const [code, message] = await refused(method, { ...body, idempotency_key: wrong });
      expect([code, message]).toEqual([
        "invalid_argument",
        expect.stringMatching(/^idempotency_key is .*it must be 1 to 128 printable characters$/),
      ]);
      expect(message).toContain(shown);
    }
    expect(await create({ idempotency_key: "ü".repeat(128) })).toBeDefined();
  });

  it("belongs to the team", async () => {
    const first = await create();
    const other = await f.gateway.addTeam("others");
    const { secret } = await f.gateway.createApiKey(other.id, "theirs");
    const theirs = await f.call("CreateSandbox", key, { secret });
    expect(theirs.body.sandbox.id).not.toBe(first.sandbox.id);
  });

  it("makes one sandbox of calls at the same time", async () => {
    const answers = await Promise.all([create(), create(), create(), create(), create()]);
    expect(new Set(answers.map(({ sandbox }) => sandbox.id)).size).toBe(1);
    expect(answers.every(({ sandbox }) => sandbox.state === "SANDBOX_STATE_RUNNING")).toBe(true);
    expect(await count()).toBe(1);
    expect(f.host.machines.size).toBe(1);
  });

  it("waits for the sandbox that the first call still makes, 10 s at most", async () => {
    f.host.fault("createMachine", "hang");
    const first = f.call("CreateSandbox", key);
    await expect.poll(() => f.host.calls).toContainEqual(expect.stringMatching(/^createMachine/));
    const second = f.call("CreateSandbox", key);
    await quiet();
    await f.clock.advance(10_000);
    const [a, b] = await Promise.all([first, second]);
    expect([a.body.sandbox.state, b.body.sandbox.state]).toEqual([
      "SANDBOX_STATE_CREATING",
      "SANDBOX_STATE_CREATING",
    ]);
    expect(b.body.sandbox.id).toBe(a.body.sandbox.id);
  });

  it("of a fork answers even when the source is gone, and needs no room", async () => {
    const source = (await create({})).sandbox.id;
    const fork = { ...key, source_sandbox_id: source };
    const first = await f.call("ForkSandbox", fork);
    await create({});
    expect((await refused("CreateSandbox", {}))[0]).toBe("resource_exhausted");
    expect((await f.call("ForkSandbox", fork)).body.sandbox.id).toBe(first.body.sandbox.id);
    await f.call("DeleteSandbox", { id: source });
    await expect.poll(async () => (await f.call("GetSandbox", { id: source })).status).toBe(404);
    expect((await f.call("ForkSandbox", fork)).body.sandbox).toMatchObject({
      id: first.body.sandbox.id,
      source_sandbox_id: source,
    });
  });

  it("is free again when the call was refused", async () => {
    f.host.fault("createMachine", "before", Code.ResourceExhausted, 1, "no memory left");
    expect(await refused("CreateSandbox", key)).toEqual(["resource_exhausted", "no memory left"]);
    expect((await create({ ...key, name: "with other fields" })).sandbox.state).toBe("SANDBOX_STATE_RUNNING");
  });

  it("is free again when there was no room", async () => {
    const [one] = [await create({}), await create({}), await create({})];
    expect((await refused("CreateSandbox", key))[0]).toBe("resource_exhausted");
    await f.call("DeleteSandbox", { id: one.sandbox.id });
    await create();
  });

  it("keeps a sandbox in ERROR, and the deletion of what it made", async () => {
    f.host.fault("createMachine", "before", Code.Internal, 1, "no disk");
    const { sandbox } = await create();
    const again = await create();
    expect(again).toMatchObject({
      sandbox: { id: sandbox.id, state: "SANDBOX_STATE_ERROR", error_message: "no disk" },
      data_plane_token: "",
      data_plane_url: "",
    });
    await f.call("DeleteSandbox", { id: sandbox.id });
    await expect.poll(async () => (await f.call("GetSandbox", { id: sandbox.id })).status).toBe(404);
    expect(await refused("CreateSandbox", key)).toEqual([
      "not_found",
      expect.stringMatching(new RegExp(`^idempotency_key: .*deleted since \\(${sandbox.id}\\)`)),
    ]);
    expect(await count()).toBe(0);
  });

  it("survives a restart, and is forgotten after 24 hours", async () => {
    const { sandbox } = await create();
    await f.restart();
    await f.clock.jump(23 * hourMs);
    expect((await create()).sandbox.id).toBe(sandbox.id);
    await f.clock.jump(hourMs);
    expect((await create({ ...key, name: "x" })).sandbox.id).not.toBe(sandbox.id);
  });

  it("is swept without another call", async () => {
    await create();
    await f.clock.jump(25 * hourMs);
    // Asked for time 0, `find` would still return the key if it had not been swept.
    await expect
      .poll(() => f.database.idempotencyKeys.find(f.teamId, key.idempotency_key, 0))
      .toBeUndefined();
  });

  it("is refused, not an internal error, when a field has no value", async () => {
    const port = f.listener.port;
    const answer = await postCall(
      port,
      "CreateSandbox",
      { ...key, public_ports: [null] },
      { secret: f.secret },
    );
    expect(answer.body.code).toBe("invalid_argument");
  });
});
