import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { limits } from "@cloche/protocol";
import { type GatewayFixture, openFixture } from "../testing/gateway-fixture.ts";

let f: GatewayFixture;
beforeEach(async () => {
  f = await openFixture();
});
afterEach(() => f.close());

const call = (method: string, body: object = {}, secret = f.secret) =>
  f.call(method, body, { service: "cloche.public.v1.ApiKeyService", secret });

describe("ApiKeyService", () => {
  it("creates a key whose secret is shown once and works, lists it, and revokes it at once", async () => {
    const { key, secret } = (await call("CreateApiKey", { name: "ci" })).body;
    expect(key).toMatchObject({ name: "ci", expires_at: "", last_used_at: "" });
    expect(key.id).toMatch(/^key-[a-z0-9]{20}$/);
    expect(secret.startsWith(key.prefix)).toBe(true);
    expect((await call("ListApiKeys", {}, secret)).status).toBe(200);
    const { keys } = (await call("ListApiKeys")).body;
    expect(keys.map((one: { name: string }) => one.name).toSorted()).toEqual(["ci", "test"]);
    expect(JSON.stringify(keys)).not.toContain(secret);
    expect(keys.find((one: { id: string }) => one.id === key.id).last_used_at).toMatch(/:00\.000Z$/);
    expect((await call("RevokeApiKey", { id: key.id })).body).toEqual({});
    expect((await call("RevokeApiKey", { id: key.id })).body).toEqual({});
    const refused = await call("ListApiKeys", {}, secret);
    expect(refused.body).toEqual({ code: "unauthenticated", message: `API key ${key.id} is revoked` });
    expect((await call("ListApiKeys")).body.keys).toHaveLength(1);
  });

  it("lists by pages, each key once", async () => {
    for (const name of ["a", "b", "c"]) await call("CreateApiKey", { name });
    const names: string[] = [];
    let page_token = "";
    do {
      const { keys, next_page_token } = (await call("ListApiKeys", { page_size: 3, page_token })).body;
      names.push(...keys.map((one: { name: string }) => one.name));
      page_token = next_page_token;
    } while (page_token !== "");
    expect(names.toSorted()).toEqual(["a", "b", "c", "test"]);
    expect((await call("ListApiKeys", { page_token: "x" })).body.code).toBe("invalid_argument");
  });

  it("refuses an expired key", async () => {
    const { key, secret } = (await call("CreateApiKey", { expires_in_seconds: 60 })).body;
    expect(key.name).toMatch(/^[a-z]+-[a-z]+-\d{4}$/);
    expect(Date.parse(key.expires_at)).toBe(f.clock.nowMs() + 60_000);
    await f.clock.advance(59_999);
    expect((await call("ListApiKeys", {}, secret)).status).toBe(200);
    await f.clock.advance(1);
    expect((await call("ListApiKeys", {}, secret)).body.message).toBe(`API key ${key.id} is expired`);
  });

  it("makes as many keys as a team may have, counting neither revoked nor expired ones nor another team's", async () => {
    const others = await f.gateway.addTeam("others");
    await f.gateway.createApiKey(others.id, "theirs");
    const { key: revoked } = (await call("CreateApiKey", {})).body;
    await call("RevokeApiKey", { id: revoked.id });
    await call("CreateApiKey", { expires_in_seconds: 1 });
    await f.clock.advance(1_000);
    for (let count = 1; count < limits.apiKeysPerTeam - 1; count += 1)
      await f.gateway.createApiKey(f.teamId, `key ${count}`);
    const { key: last } = (await call("CreateApiKey", {})).body;
    expect(last.id).toMatch(/^key-/);
    const refused = await call("CreateApiKey", {});
    expect([refused.status, refused.body.code]).toEqual([429, "resource_exhausted"]);
    expect(refused.body.message).toContain("500 API keys");
    await call("RevokeApiKey", { id: last.id });
    expect((await call("CreateApiKey", {})).status).toBe(200);
  });

  it("does not find another team's keys", async () => {
    const team = await f.gateway.addTeam("others");
    const { key } = await f.gateway.createApiKey(team.id, "theirs");
    const answer = await call("RevokeApiKey", { id: key.id });
    expect([answer.status, answer.body.code]).toEqual([404, "not_found"]);
    expect((await call("ListApiKeys")).body.keys).toHaveLength(1);
  });

  it.each([
    ["CreateApiKey", { name: "x".repeat(65) }, /^name is/],
    ["CreateApiKey", { expires_in_seconds: 40_000_000 }, /^expires_in_seconds is 40000000/],
    ["RevokeApiKey", {}, /^id is missing/],
  ])("%s refuses %j", async (method, body, message) => {
    const answer = await call(method, body);
    expect([answer.status, answer.body.code]).toEqual([400, "invalid_argument"]);
    expect(answer.body.message).toMatch(message);
  });

  it("keeps no secret in the database", async () => {
    const { secret } = (await call("CreateApiKey", { name: "x" })).body;
    const kept = await f.database.audit.list({ teamId: f.teamId, limit: 100 });
    expect(JSON.stringify(kept)).not.toContain(secret);
  });
});
