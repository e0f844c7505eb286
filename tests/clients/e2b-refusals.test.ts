// The E2B-compatible endpoint against who has no right and against bad input, in plain requests: each is refused with words, in E2B's shape.
import { createHash } from "node:crypto";
import { beforeAll, expect, inject, test } from "vitest";
import { sharedClient } from "../fixtures/client.ts";
import { TestService } from "../fixtures/service.ts";

const { home, env, target } = inject("service");
const client = sharedClient();
let url = "";
let key = "";
let own: { sandboxID: string; envdAccessToken: string };
let foreign: { sandboxID: string; envdAccessToken: string };

beforeAll(async () => {
  const { status } = await TestService.running(home, env);
  url = status.e2b?.api_url ?? "";
  key = status.e2b?.api_key ?? "";
  const make = async (apiKey: string): Promise<typeof own> => {
    const answer = await ask("POST", "/sandboxes", {
      key: apiKey,
      json: { templateID: "base", timeout: 600 },
    });
    expect(answer.status).toBe(201);
    return answer.body as typeof own;
  };
  own = await make(key);
  foreign = await make(target.otherTeamKey ?? "");
});

interface Asked {
  status: number;
  body: { code?: unknown; message?: string };
  headers: Headers;
}
async function ask(
  method: string,
  path: string,
  options: { key?: string | undefined; json?: unknown; text?: string; headers?: Record<string, string> } = {},
): Promise<Asked> {
  const { key: apiKey = key, json, text } = options;
  const body = text ?? (json === undefined ? undefined : JSON.stringify(json));
  const headers = { ...(apiKey !== "" && { "x-api-key": apiKey }), ...options.headers };
  const answer = await fetch(`${url}${path}`, { method, headers, ...(body !== undefined && { body }) });
  const read = await answer.text();
  return { status: answer.status, body: read === "" ? {} : JSON.parse(read), headers: answer.headers };
}
const inSandbox = (of: typeof own, token = of.envdAccessToken): Record<string, string> => ({
  "e2b-sandbox-id": of.sandboxID,
  "e2b-sandbox-port": "49983",
  "x-access-token": token,
});

test.each([
  ["no key", ""],
  ["a key of nobody", `e2b_${"0".repeat(40)}`],
  ["a key with a control character", "a\tb"],
])("%s is 401 at every route", async (_what, apiKey) => {
  const routes: [string, string][] = [
    ["GET", "/v2/sandboxes"],
    ["POST", "/v2/sandboxes"],
    ["GET", `/sandboxes/${own.sandboxID}`],
    ["DELETE", `/sandboxes/${own.sandboxID}`],
    ["POST", `/sandboxes/${own.sandboxID}/pause`],
    ["POST", `/v2/sandboxes/${own.sandboxID}/connect`],
    ["PUT", `/sandboxes/${own.sandboxID}/network`],
    ["GET", "/snapshots"],
    ["DELETE", "/templates/ckpt-aaaaaaaaaaaaaaaaaaaa"],
  ];
  for (const [method, path] of routes) {
    const json = method === "GET" ? undefined : { templateID: "base" };
    const { status, body } = await ask(method, path, { key: apiKey, json });
    expect([path, status, body.code, body.message]).toEqual([path, 401, 401, expect.stringContaining("key")]);
  }
});

test("another team's sandbox is none, for its key and for its sandbox's token", async () => {
  const id = foreign.sandboxID;
  for (const [method, path] of [
    ["GET", `/sandboxes/${id}`],
    ["DELETE", `/sandboxes/${id}`],
    ["POST", `/sandboxes/${id}/pause`],
    ["POST", `/sandboxes/${id}/timeout`],
    ["POST", `/sandboxes/${id}/fork`],
    ["POST", `/sandboxes/${id}/snapshots`],
    ["POST", `/v2/sandboxes/${id}/connect`],
    ["PUT", `/sandboxes/${id}/network`],
    ["GET", `/v2/sandboxes/${id}/logs`],
  ] as const) {
    const { status, body } = await ask(method, path, method === "GET" ? {} : { json: { timeout: 10 } });
    expect([path, status, body.code]).toEqual([path, 404, 404]);
  }
  const list = (await ask("GET", "/v2/sandboxes")).body as unknown as { sandboxID: string }[];
  expect(list.map(({ sandboxID }) => sandboxID)).not.toContain(id);
  const crossed = await ask("GET", "/files?path=/etc/hostname", {
    headers: inSandbox(foreign, own.envdAccessToken),
  });
  expect([crossed.status, crossed.body.code]).toEqual([401, 401]);
  expect((await ask("GET", "/health", { headers: inSandbox(foreign) })).status).toBe(204);
});

/** A server on port 8123 whose answers go on for a minute. */
const endlessServer = `
import http.server, time
class Endless(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        for _ in range(600):
            self.wfile.write(b".")
            self.wfile.flush()
            time.sleep(0.1)
http.server.ThreadingHTTPServer(("0.0.0.0", 8123), Endless).serve_forever()`;

test("a sandbox's token and its signed URLs end with their API key, for calls under way too", async () => {
  const call = async (method: string, body: object): Promise<{ key: { id: string }; secret: string }> => {
    const answer = await fetch(`${target.gatewayUrl}/cloche.public.v1.ApiKeyService/${method}`, {
      method: "POST",
      headers: { "content-type": "application/json", authorization: `Bearer ${key}` },
      body: JSON.stringify(body),
    });
    expect(answer.status).toBe(200);
    return answer.json() as Promise<{ key: { id: string }; secret: string }>;
  };
  const { key: made, secret } = await call("CreateApiKey", { name: "short-lived" });
  const found = await ask("POST", `/v2/sandboxes/${own.sandboxID}/connect`, {
    key: secret,
    json: { timeout: 600 },
  });
  const theirs = found.body as unknown as typeof own;
  expect(theirs.envdAccessToken).not.toBe(own.envdAccessToken);
  const signature = createHash("sha256")
    .update(`/etc/passwd:read:root:${theirs.envdAccessToken}`)
    .digest("base64");
  const signed = `/files?path=/etc/passwd&username=root&signature=v1_${encodeURIComponent(signature.replace(/=+$/, ""))}`;
  const statuses = async (): Promise<number[]> => [
    (await fetch(`${url}/files?path=/etc/passwd`, { headers: inSandbox(theirs) })).status,
    (await fetch(`${url}${signed}`, { headers: { "e2b-sandbox-id": own.sandboxID } })).status,
    (await fetch(`${url}${signed}`)).status,
  ];
  expect(await statuses()).toEqual([200, 200, 200]);

  const start = (sandbox: typeof own, ...[cmd, ...args]: string[]): Promise<Response> => {
    const message = Buffer.from(JSON.stringify({ process: { cmd, args } }));
    const head = Buffer.alloc(5);
    head.writeUInt32BE(message.length, 1);
    return fetch(`${url}/process.Process/Start`, {
      method: "POST",
      headers: { ...inSandbox(sandbox), "content-type": "application/connect+json" },
      body: Buffer.concat([head, message]),
    });
  };
  const stream = await start(theirs, "sleep", "60");
  const ended = stream.text().catch(() => "cut");
  await start(own, "python3", "-c", endlessServer);
  const port = { "e2b-sandbox-id": own.sandboxID, "e2b-sandbox-port": "8123" };
  const fromPort = async (sandbox: typeof own): Promise<Response> =>
    fetch(url, { headers: { ...port, "x-access-token": sandbox.envdAccessToken } });
  await expect.poll(async () => (await fromPort(own)).status, { timeout: 20_000 }).toBe(200);
  const portEnded = (await fromPort(theirs)).text().catch(() => "cut");

  await call("RevokeApiKey", { id: made.id });
  expect(await statuses()).toEqual([401, 401, 401]);
  expect([await ended, await portEnded]).toEqual(["cut", "cut"]);
}, 60_000);

test("a sandbox's token is needed, and opens neither the API nor the gateway", async () => {
  for (const token of ["", "made up", "A".repeat(3_000), key]) {
    const { status } = await ask("GET", "/files?path=/etc/passwd", {
      key: "",
      headers: inSandbox(own, token),
    });
    expect(status).toBe(401);
  }
  expect((await ask("GET", "/v2/sandboxes", { key: own.envdAccessToken })).status).toBe(401);
  const call = `${target.gatewayUrl}/cloche.public.v1.SandboxService/ListSandboxes`;
  const headers = { "content-type": "application/json", authorization: `Bearer ${own.envdAccessToken}` };
  expect((await fetch(call, { method: "POST", headers, body: "{}" })).status).toBe(401);
});

test("a signature of a token that was guessed, and one of another sandbox, is refused", async () => {
  const signed = (token: string): string =>
    `v1_${createHash("sha256").update(`/etc/passwd:read:root:${token}`).digest("base64").replace(/=+$/, "")}`;
  const path = (signature: string): string =>
    `/files?path=/etc/passwd&username=root&signature=${encodeURIComponent(signature)}`;
  const to = (id: string): Record<string, string> => ({ "e2b-sandbox-id": id });
  expect((await ask("GET", path(signed("guess")), { key: "" })).status).toBe(401);
  const crossed = await ask("GET", path(signed(own.envdAccessToken)), {
    key: "",
    headers: to(foreign.sandboxID),
  });
  expect([crossed.status, crossed.body.message]).toEqual([401, "invalid signature"]);
  const good = await fetch(`${url}${path(signed(own.envdAccessToken))}`);
  expect([good.status, await good.text()]).toEqual([200, expect.stringContaining("root:")]);
});

test.each([
  ["POST", "/v2/sandboxes", { json: {} }, 400, "templateID is missing"],
  ["POST", "/v2/sandboxes", { json: { templateID: 7 } }, 400, "templateID is 7; it must be a string"],
  ["POST", "/v2/sandboxes", { text: "{" }, 400, "not valid JSON"],
  ["POST", "/v2/sandboxes", { text: "[]" }, 400, "must be a JSON object"],
  ["POST", "/v2/sandboxes", { json: { templateID: "base", timeout: -1 } }, 400, "timeout is -1"],
  ["POST", "/v2/sandboxes", { json: { templateID: "base", timeout: "soon" } }, 400, 'timeout is "soon"'],
  ["POST", "/v2/sandboxes", { json: { templateID: "base", metadata: { a: 1 } } }, 400, "metadata is"],
  ["POST", "/v2/sandboxes", { json: { templateID: "base", envVars: [] } }, 400, "envVars is"],
  ["POST", "/v2/sandboxes", { json: { templateID: "base", autoPause: "yes" } }, 400, "autoPause is"],
  ["POST", "/v2/sandboxes", { json: { templateID: "none" } }, 404, "template 'none' not found"],
  ["POST", "/v2/sandboxes", { json: { templateID: "ckpt-aaaaaaaaaaaaaaaaaaaa" } }, 404, "not found"],
  [
    "POST",
    "/v2/sandboxes",
    { json: { templateID: "base", volumeMounts: [{ name: "v", path: "/v" }] } },
    501,
    "volumeMounts",
  ],
  ["POST", "/v2/sandboxes", { json: { templateID: "base", iam: { tokens: { a: {} } } } }, 501, "iam"],
  [
    "POST",
    "/v2/sandboxes",
    { json: { templateID: "base", network: { rules: { "a.org": [{}] } } } },
    501,
    "network.rules",
  ],
  ["GET", "/v2/sandboxes?state=asleep", {}, 400, 'state is "asleep"; it must be running or paused'],
  ["GET", "/v2/sandboxes?limit=0", {}, 400, "limit is"],
  ["GET", "/v2/sandboxes?order=up", {}, 400, "order is"],
  ["GET", "/v2/sandboxes?nextToken=nonsense", {}, 400, "page_token"],
  ["GET", "/v2/sandboxes?startedAfter=yesterday", {}, 400, "startedAfter is"],
  ["GET", "/sandboxes/not-an-id", {}, 404, "there is no sandbox"],
  ["GET", "/sandboxes/%ff", {}, 400, "percent-encoding"],
  ["GET", "/nowhere", {}, 404, "there is no route GET /nowhere"],
  ["PATCH", "/v2/sandboxes", {}, 405, "takes"],
  ["POST", "/v3/templates", { json: { name: "t" } }, 501, "building templates"],
  ["GET", "/templates/base/tags", {}, 501, "tags"],
  ["GET", "/templates/aliases/none", {}, 404, "template 'none' not found"],
  ["GET", "/volumes", {}, 501, "volumes"],
  ["POST", "/secrets", { json: {} }, 501, "secrets"],
])("%s %s with %j is %i", async (method, path, options, status, words) => {
  const { status: answered, body } = await ask(method, path, options);
  expect([answered, body.code, body.message]).toEqual([status, status, expect.stringContaining(words)]);
});

test("a sandbox that there is not is 502 without a wish to be asked again", async () => {
  const gone = { sandboxID: "sbx-aaaaaaaaaaaaaaaaaaaa", envdAccessToken: "x" };
  expect((await ask("GET", "/health", { headers: inSandbox(gone) })).status).toBe(401);
  await ask("DELETE", `/sandboxes/${foreign.sandboxID}`, { key: target.otherTeamKey });
  for (const path of ["/health", "/files?path=/etc/hostname"]) {
    const { status, body, headers } = await ask("GET", path, { headers: inSandbox(foreign) });
    expect([status, headers.get("should-retry"), body.message]).toEqual([
      502,
      "false",
      expect.stringContaining("was not found"),
    ]);
  }
  const bad = await ask("GET", "/health", { headers: { "e2b-sandbox-id": "../x" } });
  expect(bad.status).toBe(502);
});

test.each([
  ["process.Process/Start", "application/json", "{}", 415],
  ["process.Process/List", "application/proto", "", 415],
  ["process.Process/List", "application/json", "{", 400],
  ["process.Process/SendInput", "application/json", "{}", 400],
  ["process.Process/SendSignal", "application/json", '{"process":{"pid":1},"signal":"SIGNAL_SIGHUP"}', 400],
  ["process.Process/SendSignal", "application/json", '{"process":{"pid":3999999},"signal":9}', 404],
  ["process.Process/Update", "application/json", '{"process":{"pid":1},"pty":{"size":{"cols":0}}}', 400],
  ["process.Process/Nothing", "application/json", "{}", 501],
  ["filesystem.Filesystem/Stat", "application/json", '{"path":7}', 400],
  ["filesystem.Filesystem/ListDir", "application/json", '{"path":"/etc/passwd"}', 400],
  ["filesystem.Filesystem/GetWatcherEvents", "application/json", '{"watcherId":"none"}', 404],
])("%s as %s with %s is %i", async (name, type, text, status) => {
  const headers = { ...inSandbox(own), "content-type": type };
  const answer = await ask("POST", `/${name}`, { headers, text });
  expect([answer.status, answer.body.message]).toEqual([status, expect.stringMatching(/./)]);
});

test("what was made is the team's own in the gateway too", async () => {
  const { sandboxes } = await client.gateway<{ sandboxes: { id: string }[] }>("ListSandboxes");
  expect(sandboxes.map(({ id }) => id)).toContain(own.sandboxID);
  expect((await ask("DELETE", `/sandboxes/${own.sandboxID}`)).status).toBe(204);
});
