/** Whose lists and other large reads are made when. */
import { listenerBounds } from "@cloche/base";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { gatewayLimits } from "../limits.ts";
import { type GatewayFixture, openFixture } from "../testing/gateway-fixture.ts";
import { readsMuch } from "./read-turns.ts";

let f: GatewayFixture;
beforeEach(async () => void (f = await openFixture()));
afterEach(async () => f.close());

it("a team's reads wait for each other, and for no other team's", async () => {
  const { audit } = f.database;
  const list = audit.list.bind(audit);
  const end = Promise.withResolvers<void>();
  let inWork = 0;
  vi.spyOn(audit, "list").mockImplementation(async (query) => {
    if (query.teamId !== f.teamId) return await list(query);
    inWork += 1;
    await end.promise;
    return await list(query);
  });
  const begun = Array.from({ length: 20 }, () => f.call("ListAuditEntries"));
  await expect.poll(() => inWork).toBe(listenerBounds.readsOfTeam);
  const other = await f.gateway.createApiKey((await f.gateway.addTeam("others")).id, "other");
  expect((await f.call("ListAuditEntries", {}, { secret: other.secret })).status).toBe(200);
  expect((await f.call("ListSandboxes", { page_size: 1 })).status).toBe(200);
  expect((await f.call("GetSandbox", { id: "none" })).status).toBe(404);
  expect(inWork).toBe(listenerBounds.readsOfTeam);
  end.resolve();
  for (const { status } of await Promise.all(begun)) expect(status).toBe(200);
  expect(inWork).toBe(20);
  expect((await f.call("ListAuditEntries")).status).toBe(200);
});

it("a read that is refused ends its turn", async () => {
  for (let call = 0; call <= listenerBounds.readsOfTeam; call += 1)
    expect((await f.call("ListAuditEntries", { page_token: "none" })).status).toBe(400);
});

it.each([
  ["ListSandboxes", { pageSize: 0 }, true],
  ["ListSandboxes", { pageSize: gatewayLimits.shortPage }, false],
  ["ListSandboxes", { pageSize: gatewayLimits.shortPage + 1 }, true],
  ["ListSandboxes", { pageSize: -1 }, true],
  ["GetUsage", { pageSize: 0 }, true],
  ["GetSandbox", {}, false],
])("%s with %o reads much: %s", (method, message, much) => {
  expect(readsMuch(method, message)).toBe(much);
});
