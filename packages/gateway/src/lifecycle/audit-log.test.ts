import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { type GatewayFixture, openFixture } from "../testing/gateway-fixture.ts";

let f: GatewayFixture;
beforeEach(async () => {
  f = await openFixture();
});
afterEach(() => f.close());

const lines = async (subject: string): Promise<string[]> => {
  const entries = await f.database.audit.list({ teamId: f.teamId, subject, limit: 100 });
  return entries.toReversed().map((one) => `${one.action} ${one.result} by ${one.actor} in ${one.requestId}`);
};

describe("the audit log", () => {
  it("tells who asked for what, when, in which request, and how it ended", async () => {
    const key = (await f.database.apiKeys.list(f.teamId, { limit: 1 }))[0]?.id;
    const as = (requestId: string) => ({ headers: { "x-request-id": requestId } });
    const { id } = (await f.call("CreateSandbox", {}, as("r1"))).body.sandbox;
    await f.call("ResumeSandbox", { id }, as("r2"));
    await f.call("SuspendSandbox", { id }, as("r3"));
    await expect
      .poll(async () => (await f.call("GetSandbox", { id })).body.sandbox.state)
      .toMatch(/SUSPENDED$/);
    await f.call("SuspendSandbox", { id }, as("r4"));
    await f.call("ForkSandbox", { source_sandbox_id: id }, as("r5"));
    await f.call("DeleteSandbox", { id }, as("r6"));
    await expect.poll(async () => (await f.call("GetSandbox", { id })).status).toBe(404);
    expect(await lines(id)).toEqual([
      `sandbox.create ok by ${key} in r1`,
      `sandbox.create.done ok by ${key} in r1`,
      `sandbox.suspend ok by ${key} in r3`,
      `sandbox.suspend.done ok by ${key} in r3`,
      `sandbox.fork failed_precondition by ${key} in r5`,
      `sandbox.delete ok by ${key} in r6`,
      `sandbox.delete.done ok by ${key} in r6`,
    ]);
    const [entry] = await f.database.audit.list({ teamId: f.teamId, subject: id, limit: 1 });
    expect(entry?.atMs).toBe(f.clock.nowMs());
  });

  it("tells of keys", async () => {
    const service = "cloche.public.v1.ApiKeyService";
    const { key } = (await f.call("CreateApiKey", { name: "x" }, { service })).body;
    await f.call("RevokeApiKey", { id: key.id }, { service });
    expect((await lines(key.id)).map((one) => one.split(" by ")[0])).toEqual([
      "key.create ok",
      "key.revoke ok",
    ]);
  });

  it("drops what is older than 90 days", async () => {
    const { id } = (await f.call("CreateSandbox")).body.sandbox;
    await f.clock.jump(89 * 24 * 3_600_000);
    expect(await lines(id)).toHaveLength(2);
    await f.clock.jump(2 * 24 * 3_600_000);
    expect(await lines(id)).toEqual([]);
  });
});
