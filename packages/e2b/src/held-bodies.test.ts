/** What one team can make the process hold by bodies that do not end, and by answers that are not read. */
import { once } from "node:events";
import { createServer, request as ask, type ClientRequest, type Server } from "node:http";
import net, { type AddressInfo } from "node:net";
import { heldAnswers, listenerBounds } from "@cloche/base";
import { recordedLog } from "@cloche/base/testing";
import { limits } from "@cloche/protocol";
import { afterEach, beforeEach, expect, test } from "vitest";
import { AccessTokens } from "./access-token.ts";
import { createE2b, type E2bEndpoint } from "./endpoint.ts";

const secret = Buffer.alloc(32, 1);
const sandboxId = "sbx-aaaaaaaaaaaaaaaaaaaa";
let gateway: Server;
let endpoint: E2bEndpoint;
let port: number;
let calls: number;
/** The gateway does not answer. */
let isHeld: boolean;
let isLong: boolean;
const open: ClientRequest[] = [];

beforeEach(async () => {
  const sandbox = {
    id: sandboxId,
    state: "SANDBOX_STATE_RUNNING",
    created_at: "2026-01-31T12:00:00Z",
    metadata: { key: "x".repeat(60_000) },
  };
  const sandboxes = Array.from({ length: 100 }, () => sandbox);
  calls = 0;
  isHeld = false;
  isLong = false;
  gateway = createServer((_request, response) => {
    calls += 1;
    const next_page_token = isLong && calls === 1 ? "more" : "";
    if (!isHeld)
      response.end(JSON.stringify({ sandbox, sandboxes: isLong ? sandboxes : [], next_page_token }));
  });
  await once(gateway.listen(0, "127.0.0.1"), "listening");
  endpoint = createE2b({
    gatewayUrl: `http://127.0.0.1:${(gateway.address() as AddressInfo).port}`,
    edgeUrl: "https://127.0.0.1:1",
    caCert: "",
    baseDomain: "x.test",
    edgePort: 443,
    secret,
    ownKey: "own",
    teamOf: async (apiKey) => apiKey.split("-", 1)[0],
    log: recordedLog().log,
  });
  port = await endpoint.listen(0, "127.0.0.1");
});
afterEach(async () => {
  for (const one of open.splice(0)) one.destroy();
  await endpoint.close();
  gateway.closeAllConnections();
  gateway.close();
});

interface Call {
  path: string;
  bytes: number;
  headers: Record<string, string>;
}

interface Sent {
  /** Of the answer, which comes before the body's end if the body is refused. */
  status?: number;
}

/** Sends all of a body but its last byte. */
function begin(apiKey: string, { path, bytes, headers }: Call): Sent {
  const sent: Sent = {};
  const token = new AccessTokens(secret).issue(apiKey, sandboxId);
  const request = ask({
    port,
    path,
    method: "POST",
    headers: { "x-api-key": apiKey, "x-access-token": token, ...headers, "content-length": bytes },
  });
  open.push(request);
  request.on("response", ({ statusCode = 0 }) => (sent.status = statusCode)).on("error", () => undefined);
  const body = Buffer.alloc(bytes - 1);
  // The length of a stream's only message.
  body.writeUInt32BE(bytes - 5, 1);
  request.write(body);
  return sent;
}

const inSandbox = (contentType: string) => ({ "e2b-sandbox-id": sandboxId, "content-type": contentType });

test.each<[string, Call, number]>([
  ["of the API", { path: "/sandboxes", bytes: limits.gatewayBodyBytes, headers: {} }, 413],
  [
    "of a call in a sandbox",
    {
      path: "/filesystem.Filesystem/Stat",
      bytes: limits.messageBytes,
      headers: inSandbox("application/json"),
    },
    413,
  ],
  [
    "of a stream",
    {
      path: "/process.Process/Start",
      bytes: limits.messageBytes,
      headers: inSandbox("application/connect+json"),
    },
    // The refusal is in the stream's last message.
    200,
  ],
])("bodies %s are bounded for a team, whatever its keys", async (_what, call, refusal) => {
  const fit = Math.floor(listenerBounds.teamBytes / call.bytes);
  const more = 3;
  const sent = Array.from({ length: fit + more }, (_, count) => begin(`team1-${count % 4}`, call));
  const refused = (): number => sent.filter(({ status }) => status === refusal).length;
  await expect.poll(refused, { timeout: 10_000 }).toBeGreaterThanOrEqual(more);
  const other = begin("team2-1", call);
  await new Promise((resolve) => setTimeout(resolve, 100));
  expect(other.status).toBeUndefined();
});

test("answers that are not read are counted", async () => {
  isLong = true;
  const socket = net.connect(port, "127.0.0.1").pause();
  const list = "GET /v2/sandboxes?limit=100 HTTP/1.1\r\nhost: x\r\nx-api-key: team1-1\r\n\r\n";
  // The kernel takes some megabytes.
  socket.on("error", () => undefined).write(list.repeat(4));
  await expect.poll(() => heldAnswers.bytes, { timeout: 10_000 }).toBeGreaterThan(0);
  socket.destroy();
  await expect.poll(() => heldAnswers.bytes).toBe(0);
});

const get = (path: string, key: string): Promise<Response> =>
  fetch(`http://127.0.0.1:${port}${path}`, { headers: { "x-api-key": key } });

test("lists of a team wait for each other, and for no other team's", async () => {
  isHeld = true;
  const paths = ["/v2/sandboxes", "/sandboxes", "/snapshots"];
  const begun = Array.from({ length: 9 }, (_, at) => get(paths[at % 3] ?? "", `team1-${at}`).catch(() => 0));
  await expect.poll(() => calls).toBe(listenerBounds.readsOfTeam);
  isHeld = false;
  expect((await get("/v2/sandboxes", "team2-1")).status).toBe(200);
  expect(calls).toBe(listenerBounds.readsOfTeam + 1);
  gateway.closeAllConnections();
  await Promise.all(begun);
});

test("a list without pages has a bound of bytes", async () => {
  isLong = true;
  const refused = await get("/sandboxes", "team1-1");
  expect(refused.status).toBe(429);
  expect(await refused.text()).toContain("GET /v2/sandboxes");
});
