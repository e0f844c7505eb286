import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { type GatewayFixture, openFixture } from "./testing/gateway-fixture.ts";

let f: GatewayFixture;
beforeEach(async () => {
  f = await openFixture();
});
afterEach(() => f.close());

describe("the life of a sandbox over HTTP", () => {
  it("creates, gets, lists and deletes", async () => {
    const created = await f.call("CreateSandbox", { name: "first", metadata: { a: "1" }, env: { X: "y" } });
    expect(created.status).toBe(200);
    const { sandbox } = created.body;
    expect(sandbox).toMatchObject({
      name: "first",
      state: "SANDBOX_STATE_RUNNING",
      domain: `${sandbox.id}.cloche.localhost:7443`,
      metadata: { a: "1" },
      runtime: "gvisor",
      cpus: 2,
      memory_mb: 1024,
      disk_mb: 8192,
      template: "base",
      source_sandbox_id: "",
      error_message: "",
      timeout_seconds: 0,
      expires_at: "",
    });
    expect(created.body.data_plane_token.split(".")).toHaveLength(3);
    expect((await f.call("GetSandbox", { id: sandbox.id })).body.sandbox).toEqual(sandbox);
    expect((await f.call("ListSandboxes")).body).toEqual({ sandboxes: [sandbox], next_page_token: "" });
    expect(await f.call("DeleteSandbox", { id: sandbox.id })).toMatchObject({ status: 200, body: {} });
    await f.clock.advance(0);
    expect((await f.call("GetSandbox", { id: sandbox.id })).body).toMatchObject({ code: "not_found" });
    expect(f.host.machines.size).toBe(0);
  });
});
