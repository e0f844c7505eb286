import { Code } from "@connectrpc/connect";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { type Answer, type GatewayFixture, openFixture } from "../testing/gateway-fixture.ts";

let f: GatewayFixture;
beforeEach(async () => {
  f = await openFixture();
});
afterEach(() => f.close());

const create = async (body: object = {}): Promise<Answer["body"]> => {
  const answer = await f.call("CreateSandbox", body);
  expect(answer).toMatchObject({ status: 200 });
  return answer.body.sandbox;
};
const stateOf = async (id: string): Promise<string> => {
  const answer = await f.call("GetSandbox", { id });
  return answer.status === 200 ? answer.body.sandbox.state : answer.body.code;
};

describe("timeouts", () => {
  it("suspend instead where on_timeout says so, and count anew from the next resume", async () => {
    const { id, on_timeout } = await create({ timeout_seconds: 100, on_timeout: "suspend" });
    expect(on_timeout).toBe("suspend");
    await f.clock.advance(100_000);
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_SUSPENDED");
    const expiresAt = async () => (await f.call("GetSandbox", { id })).body.sandbox.expires_at;
    expect(await expiresAt()).toBe("");
    await f.clock.advance(1_000_000);
    expect(await stateOf(id)).toBe("SANDBOX_STATE_SUSPENDED");
    await f.call("ResumeSandbox", { id });
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_RUNNING");
    expect(Date.parse(await expiresAt())).toBe(f.clock.nowMs() + 100_000);
    const { entries } = (await f.call("ListAuditEntries", { subject: id })).body;
    expect(entries).toContainEqual(
      expect.objectContaining({ action: "sandbox.suspend", actor: "system:timeout" }),
    );
    // After a failed suspend the time starts again too.
    f.host.fault("suspendMachine", "before", Code.FailedPrecondition, 1, "files are held open");
    await f.clock.advance(100_000);
    await expect
      .poll(async () => (await f.call("GetSandbox", { id })).body.sandbox.error_message)
      .toMatch(/held/);
    expect(Date.parse(await expiresAt())).toBe(f.clock.nowMs() + 100_000);
    // A sandbox that is SUSPENDED when its time is up stays SUSPENDED.
    await f.call("SuspendSandbox", { id });
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_SUSPENDED");
    await f.clock.advance(100_000);
    await expect.poll(expiresAt).toBe("");
    expect(await stateOf(id)).toBe("SANDBOX_STATE_SUSPENDED");
    const changed = { id, on_timeout: "delete", timeout_seconds: 1 };
    expect((await f.call("UpdateSandbox", changed)).body.sandbox.on_timeout).toBe("delete");
    await f.clock.advance(1_000);
    expect(await stateOf(id)).toBe("not_found");
  });

  it("delete at timeout_seconds, counted again from an update, over restarts", async () => {
    const a = await create({ timeout_seconds: 100 });
    const b = await create({ timeout_seconds: 100 });
    const c = await create({ timeout_seconds: 100 });
    const d = await create();
    expect(Date.parse(a.expires_at) - Date.parse(a.created_at)).toBe(100_000);
    await f.clock.advance(90_000);
    const extended = await f.call("UpdateSandbox", { id: b.id, timeout_seconds: 100 });
    expect(Date.parse(extended.body.sandbox.expires_at)).toBe(f.clock.nowMs() + 100_000);
    expect((await f.call("UpdateSandbox", { id: c.id, timeout_seconds: 0 })).body.sandbox.expires_at).toBe(
      "",
    );
    await f.restart();
    await f.clock.advance(9_999);
    expect(await stateOf(a.id)).toBe("SANDBOX_STATE_RUNNING");
    await f.clock.advance(1);
    expect(await stateOf(a.id)).toBe("not_found");
    expect(await stateOf(b.id)).toBe("SANDBOX_STATE_RUNNING");
    await f.clock.advance(90_000);
    expect(await stateOf(b.id)).toBe("not_found");
    await f.clock.advance(1_000_000);
    expect([await stateOf(c.id), await stateOf(d.id)]).toEqual([
      "SANDBOX_STATE_RUNNING",
      "SANDBOX_STATE_RUNNING",
    ]);
  });
});
