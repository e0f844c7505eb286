// What one team can make the process hold by bodies that do not end.
import { once } from "node:events";
import { createServer, request as ask, type ClientRequest, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { listenerBounds } from "@cloche/base";
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
const open: ClientRequest[] = [];

beforeEach(async () => {
  const answer = { sandbox: { id: sandboxId, state: "SANDBOX_STATE_RUNNING" }, sandboxes: [] };
  gateway = createServer((_request, response) => void response.end(JSON.stringify(answer)));
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
