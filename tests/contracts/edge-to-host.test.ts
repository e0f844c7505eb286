/** An edge and a host on other computers of one cluster: agents through the relay, checkpoint routes over HTTP/1.1, on one port. */
import { once } from "node:events";
import type { IncomingMessage, ServerResponse } from "node:http";
import { type HostDataPlane, Relay, type RelayNeeds, serveDataPlane } from "@cloche/host";
import { relayProtocol } from "@cloche/protocol";
import {
  Authority,
  clientSettings,
  ClusterPort,
  type Identity,
  requestCertificate,
  serverSettings,
} from "@cloche/trust";
import { silentLog } from "@cloche/base";
import { afterAll, beforeAll, beforeEach, expect, it } from "vitest";
import { sandboxA } from "../../packages/edge/src/testing/fake-gateway.ts";
import { Rig, until } from "../../packages/edge/src/testing/rig.ts";

const host: Identity = { role: "host", id: "h-1" };
let authority: Authority;
let rig: Rig;
let port: ClusterPort;
let relay: Relay;
const needs: RelayNeeds = {
  agentOf: () => ({ host: "127.0.0.1", port: rig.agentPort }),
  async hold() {
    held += 1;
    return () => undefined;
  },
  log: silentLog,
};
let held = 0;
let opened = 0;
/** What the host does with a request of the data plane. */
let onHost: HostDataPlane;

async function credentials(identity: Identity) {
  const { key, request } = await requestCertificate();
  return { ca: authority.certificate, key, cert: await authority.issue(identity, request, Date.now()) };
}

beforeAll(async () => {
  authority = await Authority.open(async (_name, value) => value, Buffer.alloc(32, 7), Date.now());
  const edge = await credentials({ role: "edge", id: "e-1" });
  const links = { tlsTo: (id: string) => clientSettings(edge, { role: "host", id }) };
  const limits = { halfClosedGraceMs: 50, relayWaitMs: 500 };
  rig = await Rig.startChannel({ links, limits }, false);
  relay = new Relay(needs);
  const dataPlane = serveDataPlane((...call) => onHost(...call));
  port = await ClusterPort.listen({
    tls: serverSettings(await credentials(host)),
    protocols: {
      [relayProtocol]: {
        roles: ["edge"],
        serve(socket) {
          opened += 1;
          relay.serve(socket);
        },
      },
      "http/1.1": { roles: ["edge"], serve: (socket) => dataPlane.serve(socket) },
    },
    address: "127.0.0.1",
    port: 0,
    log: silentLog,
  });
});
afterAll(async () => {
  await rig[Symbol.asyncDispose]();
  await port.close();
});
beforeEach(() => {
  held = 0;
  opened = 0;
  rig.seen.length = 0;
  rig.gateway.set({
    sandboxId: sandboxA,
    hostId: "h-1",
    hostAddress: `127.0.0.1:${port.port}`,
    agentHost: "192.0.2.1",
  });
});

it("asks the agent through the relay, on connections that are kept", async () => {
  const headers = await rig.bearer();
  for (let i = 0; i < 3; i += 1) {
    const answer = await rig.ask({ method: "PUT", path: "/v1/store/a", headers, body: `body ${i}` });
    expect(answer.status, answer.body).toBe(200);
  }
  expect(rig.seen.map(({ body }) => body)).toEqual(["body 0", "body 1", "body 2"]);
  // And the watch.
  expect(opened).toBe(2);
  expect(held).toBeGreaterThan(3);
});

it("carries large bodies both ways", async () => {
  rig.onAgent = (request, response) => void request.pipe(response);
  const body = Buffer.alloc(3_000_000, "x");
  const headers = await rig.bearer();
  const answer = await rig.ask({ method: "PUT", path: "/v1/files/content?path=/a", headers, body });
  rig.onAgent = undefined;
  expect([answer.status, answer.body.length]).toEqual([200, body.length]);
});

it("reaches no other host than the route names", async () => {
  rig.gateway.set({ sandboxId: sandboxA, hostId: "h-2" });
  const headers = await rig.bearer();
  const agent = await rig.ask({ path: "/v1/store/a", headers });
  expect([agent.status, JSON.parse(agent.body).code, agent.headers["retry-after"]]).toEqual([
    503,
    "unavailable",
    "1",
  ]);
  let isAsked = false;
  onHost = () => void (isAsked = true);
  const checkpoints = await rig.ask({ path: "/v1/checkpoint/list", headers });
  expect([checkpoints.status, JSON.parse(checkpoints.body).code]).toEqual([503, "unavailable"]);
  expect([isAsked, opened, rig.seen]).toEqual([false, 0, []]);
});

it("passes checkpoint routes on to the host as they are, and its answers back", async () => {
  const seen: [string, string, string][] = [];
  onHost = (request: IncomingMessage, response: ServerResponse, { sandboxId, requestId }) => {
    void (async () => {
      let body = "";
      for await (const chunk of request) body += String(chunk);
      seen.push([
        `${request.method} ${request.url} ${request.headers.authorization}`,
        body,
        `${sandboxId} ${requestId}`,
      ]);
      response.setHeader("retry-after", "7");
      response.writeHead(409, { "content-type": "application/json" });
      response.end('{"code":"aborted"}');
    })();
  };
  const named = { "x-request-id": "asked-1", origin: "https://app.example" };
  const headers = { ...(await rig.bearer()), ...named, "content-type": "application/json" };
  const answer = await rig.ask({ method: "POST", path: "/v1/checkpoint?a=b", headers, body: '{"name":"x"}' });
  expect([answer.status, answer.body]).toEqual([409, '{"code":"aborted"}']);
  expect(answer.headers).toMatchObject({
    "retry-after": "7",
    "x-request-id": "asked-1",
    "access-control-allow-origin": "*",
  });
  expect(seen).toEqual([
    [`POST /v1/checkpoint?a=b ${headers.authorization}`, '{"name":"x"}', `${sandboxA} asked-1`],
  ]);
});

it("tells the host when the client has gone, and the client when the host has", async () => {
  let isGone = false;
  onHost = (request, response) => {
    response.once("close", () => (isGone = true));
    if (request.method === "DELETE") request.socket.destroy();
  };
  const headers = await rig.bearer();
  const asking = rig.request({ method: "POST", path: "/v1/checkpoint/wait", headers });
  asking.on("error", () => undefined);
  asking.end("{}");
  await new Promise((resolve) => setTimeout(resolve, 100));
  asking.destroy();
  await until(() => isGone);
  const cut = await rig.ask({ method: "DELETE", path: "/v1/checkpoint/ckpt-1", headers });
  expect([cut.status, JSON.parse(cut.body).code]).toEqual([503, "unavailable"]);
});

it("the host takes no request that does not say whose it is", async () => {
  const tls = clientSettings(await credentials({ role: "edge", id: "e-1" }), host);
  const { connect } = await import("node:tls");
  const socket = connect({ ...tls, host: "127.0.0.1", port: port.port, ALPNProtocols: ["http/1.1"] });
  await once(socket, "secureConnect");
  let answer = "";
  socket.on("data", (chunk) => (answer += String(chunk)));
  socket.write("GET /v1/checkpoint/list HTTP/1.1\r\nConnection: close\r\n\r\n");
  await once(socket, "end");
  socket.destroy();
  expect(answer).toMatch(/^HTTP\/1.1 400 .*names no sandbox/s);
});

it("waits while the host's program is replaced, and sends nothing to the one that ends", async () => {
  const headers = await rig.bearer();
  const ask = (path: string) => rig.ask({ path, headers });
  // Two connections, of which one stays idle.
  const both = await Promise.all([ask("/v1/store/a"), ask("/v1/store/b")]);
  expect(both.map(({ status }) => status)).toEqual([200, 200]);
  let answer: (() => void) | undefined;
  rig.onAgent = (request, response) => {
    if (request.url === "/v1/store/slow") answer = () => response.end("done");
    else response.end("ok");
  };
  const slow = ask("/v1/store/slow");
  await until(() => answer !== undefined);
  const before = relay;
  const drained = before.drain(5_000);
  const next = ask("/v1/store/b");
  // The idle connection is closed, the one in use is not, and the request waits.
  await new Promise((resolve) => setTimeout(resolve, 100));
  relay = new Relay(needs);
  expect((await next).body).toBe("ok");
  answer?.();
  expect((await slow).body).toBe("done");
  const beganMs = performance.now();
  await drained;
  expect(performance.now() - beganMs).toBeLessThan(2_000);
  rig.onAgent = undefined;
});

it("waits no longer than its limit for a host that does not come back", async () => {
  const headers = await rig.bearer();
  await relay.drain(0);
  const beganMs = performance.now();
  const refused = await rig.ask({ path: "/v1/store/a", headers });
  expect([refused.status, JSON.parse(refused.body).code]).toEqual([503, "unavailable"]);
  expect(performance.now() - beganMs).toBeGreaterThan(450);
  relay = new Relay(needs);
  expect((await rig.ask({ path: "/v1/store/a", headers })).status).toBe(200);
});

it("follows a sandbox that moves to another host while a request waits for the first", async () => {
  const headers = await rig.bearer();
  const here = `127.0.0.1:${port.port}`;
  // Nobody listens there.
  rig.gateway.set({ sandboxId: sandboxA, hostId: "h-1", hostAddress: "127.0.0.1:1", epoch: 7n });
  const asked = rig.ask({ method: "PUT", path: "/v1/store/a", headers, body: "moved" });
  await new Promise((resolve) => setTimeout(resolve, 150));
  rig.gateway.set({ sandboxId: sandboxA, hostId: "h-1", hostAddress: here, epoch: 8n });
  const answer = await asked;
  expect(answer.status, answer.body).toBe(200);
  expect(rig.seen.map(({ body }) => body)).toEqual(["moved"]);
});
