import { afterEach, beforeEach, expect, it } from "vitest";
import { type GatewayFixture, openFixture } from "../testing/gateway-fixture.ts";

let f: GatewayFixture;
beforeEach(async () => {
  f = await openFixture();
});
afterEach(() => f.close());

interface Entry {
  id: string;
  action: string;
  subject: string;
  request_id: string;
  result: string;
}
const entries = async (query: object = {}): Promise<Entry[]> =>
  (await f.call("ListAuditEntries", query)).body.entries as Entry[];

it("tells who did what, when, in which request and with which result, newest first", async () => {
  const made = await f.call("CreateSandbox", {}, { headers: { "x-request-id": "req-create" } });
  const { id } = made.body.sandbox;
  expect(await f.call("ResumeSandbox", { id })).toMatchObject({ status: 200 });
  await f.call("UpdateSandbox", { id, name: "b" }, { headers: { "x-request-id": "req-update" } });
  await f.call("IssuePortLink", { sandbox_id: id, port: 80 });
  const about = await entries({ subject: id });
  expect(about.map(({ action }) => action)).toEqual([
    "port_link.issue",
    "sandbox.update",
    "sandbox.create.done",
    "sandbox.create",
  ]);
  expect(about.at(-1)).toMatchObject({
    actor: expect.stringMatching(/^key-/),
    at: expect.stringMatching(/^\d{4}-\d\d-\d\dT.*\.\d{3}Z$/),
    request_id: "req-create",
    result: "ok",
  });
  expect(about[1]).toMatchObject({ request_id: "req-update" });
});

it("tells of keys and of what was denied", async () => {
  const key = await f.call("CreateApiKey", { name: "ci" }, { service: "cloche.public.v1.ApiKeyService" });
  const { id } = key.body.key;
  await f.call("RevokeApiKey", { id }, { service: "cloche.public.v1.ApiKeyService" });
  expect((await entries({ subject: id })).map(({ action }) => action)).toEqual(["key.revoke", "key.create"]);
  await f.call("DeleteCheckpoint", { id: "ckpt-00000000000000000000" });
  expect((await entries())[0]).toMatchObject({ action: "checkpoint.delete", result: "not_found" });
});

it("comes in pages, for the team alone", async () => {
  for (let made = 0; made < 5; made += 1) await f.call("CreateSandbox");
  const all = await entries();
  const paged: Entry[] = [];
  let pageToken = "";
  do {
    const { body } = await f.call("ListAuditEntries", { page_size: 4, page_token: pageToken });
    expect(body.entries.length).toBeLessThanOrEqual(4);
    paged.push(...body.entries);
    pageToken = body.next_page_token;
  } while (pageToken !== "");
  expect(paged.map(({ id }) => id)).toEqual(all.map(({ id }) => id));
  const others = await f.gateway.addTeam("others");
  const { secret, key } = await f.gateway.createApiKey(others.id, "other");
  const seen = await f.call("ListAuditEntries", {}, { secret });
  expect(seen.body.entries).toEqual([expect.objectContaining({ action: "key.create", subject: key.id })]);
});

it.each([
  [{ page_size: 1_001 }, /^page_size is 1001; it must be a whole number from 0 to 1000/],
  [{ page_token: "x" }, /^page_token is "x"; it must be next_page_token of the page before/],
])("refuses %j", async (query, message) => {
  const answer = await f.call("ListAuditEntries", query);
  expect(answer).toMatchObject({ status: 400, body: { code: "invalid_argument" } });
  expect(answer.body.message).toMatch(message);
});
