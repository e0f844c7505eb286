import { createClient, createRouterTransport } from "@connectrpc/connect";
import { RouteService } from "@cloche/protocol/edge";
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
    await f.call(
      "ForkSandbox",
      { source_sandbox_id: id, checkpoint_id: "ckpt-00000000000000000000" },
      as("r5"),
    );
    await f.call("DeleteSandbox", { id }, as("r6"));
    await expect.poll(async () => (await f.call("GetSandbox", { id })).status).toBe(404);
    expect(await lines(id)).toEqual([
      `sandbox.create ok by ${key} in r1`,
      `sandbox.create.done ok by ${key} in r1`,
      `sandbox.suspend ok by ${key} in r3`,
      `sandbox.suspend.done ok by ${key} in r3`,
      `sandbox.fork not_found by ${key} in r5`,
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

  it("has what the host answered of the data plane", async () => {
    const { id } = (await f.call("CreateSandbox")).body.sandbox;
    const atUnixMs = BigInt(f.clock.nowMs() - 5);
    const of = { atUnixMs, teamId: f.teamId, actor: "token:t1", subject: id, requestId: "r9" };
    f.host.tellAudit({ ...of, action: "sandbox.restore", result: "not_found", detail: "from checkpoint c" });
    await expect.poll(() => lines(id)).toContain("sandbox.restore not_found by token:t1 in r9");
    const [entry] = await f.database.audit.list({ teamId: f.teamId, subject: id, limit: 1 });
    expect([entry?.atMs, entry?.detail]).toEqual([Number(atUnixMs), "from checkpoint c"]);
  });

  it("has links that were redeemed, and those that were not good for where they were shown", async () => {
    const { id } = (await f.call("CreateSandbox")).body.sandbox;
    const edge = createClient(
      RouteService,
      createRouterTransport((router) => void router.service(RouteService, f.gateway.routeService)),
    );
    const redeem = async (port: number, times = 1): Promise<void> => {
      const { url } = (await f.call("IssuePortLink", { sandbox_id: id, port: 3000 })).body;
      const linkToken = new URL(url).searchParams.get("token") ?? "";
      for (let time = 0; time < times; time += 1)
        await edge
          .redeemPortLink({ linkToken, sandboxId: id, port }, { headers: { "x-request-id": "r7" } })
          .catch(() => undefined);
    };
    await redeem(3000);
    // Noted once: who has a link cannot fill the log with it.
    await redeem(4000, 10);
    const redeemed = (await lines(id)).filter((line) => line.startsWith("port_link.redeem"));
    expect(redeemed).toEqual([
      "port_link.redeem ok by link in r7",
      "port_link.redeem unauthenticated by link in r7",
    ]);
  });

  it("bounds what callers write into it", async () => {
    const id = "x".repeat(500_000);
    expect((await f.call("ForkSandbox", { source_sandbox_id: id })).status).toBe(404);
    expect((await f.call("DeleteCheckpoint", { id })).status).toBe(404);
    const entries = await f.database.audit.list({ teamId: f.teamId, limit: 100 });
    expect(entries.some(({ action }) => action === "checkpoint.delete")).toBe(true);
    for (const entry of entries) expect(JSON.stringify(entry).length).toBeLessThan(3_000);
  });
});
