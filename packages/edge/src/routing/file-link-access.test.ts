/** Links to files at the edge: who gets one, what it allows, and what it does not. */
import { readFileSync } from "node:fs";
import { limits } from "@cloche/protocol";
import { afterAll, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { signFileLink, verifyFileLink } from "./file-link-token.ts";
import { sandboxA, sandboxB } from "../testing/fake-gateway.ts";
import { type Answer, Rig } from "../testing/rig.ts";

const key = Buffer.alloc(32, "k");
const otherKey = Buffer.alloc(32, "o");
let rig: Rig;
beforeAll(async () => {
  rig = await Rig.startChannel({ corsOrigins: ["https://app.test"] });
  const { agentPort } = rig;
  rig.gateway.set({ sandboxId: sandboxA, linkKey: key });
  const running = { state: "SANDBOX_STATE_RUNNING", hostId: "host-1", agentHost: "127.0.0.1", epoch: 1n };
  const { channelKey } = rig.gateway.routeOf(sandboxA);
  rig.gateway.set({ sandboxId: sandboxB, ...running, agentPort, channelKey, linkKey: otherKey });
});
beforeEach(() => {
  rig.seen.length = 0;
});
afterAll(() => rig[Symbol.asyncDispose]());

const make = async (body: object, headers: Record<string, string> = {}, more = ""): Promise<Answer> =>
  rig.ask({
    method: "POST",
    path: `/v1/files/link${more}`,
    headers: { ...(await rig.bearer()), ...headers },
    body: JSON.stringify(body),
  });
const made = async (body: object, headers: Record<string, string> = {}): Promise<string> => {
  const answer = await make(body, headers);
  expect(answer.status, answer.body).toBe(200);
  const { url } = JSON.parse(answer.body) as { url: string };
  expect(url).toContain(`https://${rig.host()}/v1/files/link?token=`);
  return new URL(url).pathname + new URL(url).search;
};
const read = { path: "/root/a file.txt", operation: "read" };
const write = { path: "/root/b", operation: "write" };

describe("making a link", () => {
  it("takes the sandbox's token, and no other credential", async () => {
    for (const [headers, status] of [
      [{}, 401],
      [await rig.bearer(sandboxB), 401],
      [{ authorization: "Bearer x" }, 401],
    ] as const)
      expect(await rig.ask({ method: "POST", path: "/v1/files/link", headers, body: "{}" })).toMatchObject({
        status,
      });
    const before = Date.now();
    const answer = JSON.parse((await make(read)).body) as { expires_at: string };
    expect(Date.parse(answer.expires_at) - before).toBeGreaterThanOrEqual(300_000);
    expect(Date.parse(answer.expires_at) - before).toBeLessThan(310_000);
    expect(rig.seen).toEqual([]);
  });

  it("names the field that is wrong", async () => {
    for (const [body, field] of [
      [{ operation: "read" }, "path"],
      [{ ...read, path: "relative" }, "path"],
      [{ ...read, path: "/a\0" }, "path"],
      [{ ...read, path: `/${"n".repeat(limits.pathBytes)}` }, "path"],
      [{ ...read, path: 5 }, "path"],
      [{ ...read, path_encoded: "/x" }, "path_encoded"],
      [{ operation: "read", path_encoded: "/%zz" }, "path_encoded"],
      [{ path: "/a" }, "operation"],
      [{ ...read, operation: "delete" }, "operation"],
      [{ ...read, expires_in_seconds: 0 }, "expires_in_seconds"],
      [{ ...read, expires_in_seconds: limits.fileLinkSeconds + 1 }, "expires_in_seconds"],
      [{ ...read, expires_in_seconds: "60" }, "expires_in_seconds"],
      [{ ...read, once: "yes" }, "once"],
      [[], "object"],
    ] as const) {
      const answer = await make(body);
      expect(answer.status, JSON.stringify(body)).toBe(400);
      expect(answer.body).toContain(field);
    }
    expect((await make({ ...read, more: "x".repeat(limits.fileLinkBodyBytes) })).status).toBe(413);
    expect((await make(read, { "x-file-user": "a:b:c" })).body).toContain("x-file-user");
    expect((await make(read, { "x-file-user": "ann" }, "?as_user=bob")).status).toBe(400);
    const other = await rig.ask({ method: "DELETE", path: "/v1/files/link" });
    expect(other).toMatchObject({ status: 405, headers: { allow: "POST, GET, HEAD, PUT" } });
  });
});

/** Every header of the file routes that says something of the file. */
const contract = readFileSync(new URL("../../../../spec/dataplane.openapi.yaml", import.meta.url), "utf8");
const fileHeaders = [...contract.matchAll(/^ +name: (x-file-[a-z-]+)$/gm)].map(([, name]) => name as string);

describe("using a link", () => {
  it("asks the agent for that file and nothing else, whatever the request says", async () => {
    const answer = await rig.ask({
      path: await made(read),
      headers: {
        authorization: "Bearer somebody-else",
        cookie: "a=b",
        ...Object.fromEntries(fileHeaders.map((name) => [name, "root"])),
        range: "bytes=0-1",
      },
    });
    expect(answer).toMatchObject({
      status: 200,
      headers: {
        "content-disposition": "attachment; filename*=UTF-8''a%20file.txt",
        "x-content-type-options": "nosniff",
      },
    });
    const [seen] = rig.seen;
    expect(seen).toMatchObject({ method: "GET", url: "/v1/files?path=/root/a%20file.txt" });
    expect(seen?.headers).toMatchObject({ range: "bytes=0-1" });
    expect(Object.keys(seen?.headers ?? {})).not.toContain("cookie");
    expect(Object.keys(seen?.headers ?? {}).filter((name) => name.startsWith("x-file"))).toEqual([]);
    expect(fileHeaders).toContain("x-file-attributes");
    expect(seen?.headers.authorization).not.toContain("somebody-else");
    await rig.ask({ method: "PUT", path: await made(write, { "x-file-user": "ann" }), body: "content" });
    expect(rig.seen[1]).toMatchObject({
      method: "PUT",
      url: "/v1/files?path=/root/b&as_user=ann",
      body: "content",
    });
    await rig.ask({ path: await made({ operation: "read", path_encoded: "/caf%E9/+" }) });
    expect(rig.seen[2]?.url).toBe("/v1/files?path=/caf%E9/%2B");
  });

  it("refuses another method, another path and another sandbox", async () => {
    const [toRead, toWrite] = [await made(read), await made(write)];
    for (const [method, path] of [
      ["PUT", toRead],
      ["GET", toWrite],
      ["HEAD", toWrite],
      ["GET", `${toRead}&path=/etc/shadow`],
      ["GET", `${toRead}&as_user=root`],
      ["PUT", `${toWrite}&append=true`],
    ] as const)
      expect(await rig.ask({ method, path }), `${method} ${path}`).toMatchObject({ status: 403 });
    expect(await rig.ask({ path: toRead, label: sandboxB })).toMatchObject({ status: 401 });
    const [, token] = toRead.split("token=");
    for (const path of ["/v1/files", "/v1/files/list", "/v1/exec"])
      expect(await rig.ask({ path: `${path}?path=/root/a&token=${token}` })).toMatchObject({ status: 401 });
    const bearer = { authorization: `Bearer ${token}` };
    expect(await rig.ask({ path: "/v1/files?path=/root/a", headers: bearer })).toMatchObject({ status: 401 });
    expect(rig.seen).toEqual([]);
  });

  it("refuses a link of which one character was changed, whichever", () => {
    const link = { path: "/a", operation: "read", user: undefined, onceId: "n", expiresAtMs: 2e12 } as const;
    const token = signFileLink(key, sandboxA, link);
    expect(verifyFileLink(key, sandboxA, token, 1e12)).toEqual(link);
    const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.=%";
    for (let at = 0; at < token.length; at += 1)
      for (const character of alphabet) {
        if (character === token[at]) continue;
        const changed = token.slice(0, at) + character + token.slice(at + 1);
        expect(() => verifyFileLink(key, sandboxA, changed, 1e12), changed).toThrow(/changed/);
      }
    for (const other of ["", ".", token.slice(0, -1), `${token}A`, `${token}.${token}`, "x".repeat(30_000)])
      expect(() => verifyFileLink(key, sandboxA, other, 1e12), other).toThrow(/changed/);
    expect(() => verifyFileLink(otherKey, sandboxA, token, 1e12)).toThrow(/changed/);
    expect(() => verifyFileLink(key, sandboxB, token, 1e12)).toThrow(/changed/);
    expect(() => verifyFileLink(key, sandboxA, token, 2e12)).toThrow(/expired/);
  });

  it("refuses a link after its time, and answers what it lacks", async () => {
    const expired = signFileLink(key, sandboxA, {
      path: "/a",
      operation: "read",
      user: undefined,
      onceId: undefined,
      expiresAtMs: Date.now(),
    });
    for (const path of ["/v1/files/link", "/v1/files/link?token=", `/v1/files/link?token=${expired}`])
      expect(await rig.ask({ path })).toMatchObject({
        status: 401,
        headers: { "www-authenticate": "Bearer" },
      });
    expect(rig.seen).toEqual([]);
  });

  it("takes one for one use once, however many come at the same time", async () => {
    const path = await made({ ...read, once: true });
    expect(await rig.ask({ method: "HEAD", path })).toMatchObject({ status: 200 });
    const statuses = await Promise.all(
      Array.from({ length: 8 }, async () => (await rig.ask({ path })).status),
    );
    expect(statuses.sort()).toEqual([200, ...Array.from({ length: 7 }, () => 401)]);
    const many = await made(read);
    for (let index = 0; index < 3; index += 1) expect((await rig.ask({ path: many })).status).toBe(200);
  });

  it("answers pages of any origin, though the rest is for some", async () => {
    const path = await made(read);
    const origin = "https://elsewhere.test";
    const used = await rig.ask({ path, headers: { origin } });
    expect(used.headers).toMatchObject({ "access-control-allow-origin": "*" });
    const preflight = await rig.ask({
      method: "OPTIONS",
      path,
      headers: { origin, "access-control-request-method": "PUT" },
    });
    expect(preflight).toMatchObject({ status: 204, headers: { "access-control-allow-origin": "*" } });
    const making = await make(read, { origin });
    expect(making.headers).not.toHaveProperty("access-control-allow-origin");
  });

  it("wakes a sandbox for a good link alone", async () => {
    rig.gateway.set({ sandboxId: sandboxA, state: "SANDBOX_STATE_SUSPENDED", autoResume: true });
    const link = signFileLink(key, sandboxA, {
      path: "/a",
      operation: "read",
      user: undefined,
      onceId: undefined,
      expiresAtMs: Date.now() + 60_000,
    });
    expect(await rig.ask({ path: `/v1/files/link?token=${link.slice(0, -2)}` })).toMatchObject({
      status: 401,
    });
    expect(rig.gateway.woken).toEqual([]);
    expect(await rig.ask({ path: `/v1/files/link?token=${link}` })).toMatchObject({ status: 200 });
    expect(rig.gateway.woken).toEqual([sandboxA]);
  });
});
