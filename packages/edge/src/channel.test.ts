/**
 * An agent with the channel behind the edge: the owner's token stays in the edge, and the inner token is valid only for
 * that agent.
 */
import { once } from "node:events";
import http from "node:http";
import type { AddressInfo } from "node:net";
import { createServer } from "node:tls";
import { channelKeyOf, preSharedKeyOf } from "@cloche/base";
import { channel } from "@cloche/protocol";
import { expect, test } from "vitest";
import { sandboxA, sandboxB } from "./testing/fake-gateway.ts";
import { Rig, until } from "./testing/rig.ts";

const claimsOf = (authorization = ""): Record<string, unknown> =>
  JSON.parse(Buffer.from(authorization.split(".")[1] ?? "", "base64url").toString());

test("the agent gets an inner token of the owner's claims, never the owner's token", async () => {
  await using rig = await Rig.startChannel();
  const token = await rig.gateway.token(sandboxA);
  const headers = { authorization: `Bearer ${token}` };
  for (let i = 0; i < 2; i += 1)
    expect((await rig.ask({ method: "PUT", path: "/v1/store/a", headers, body: "{}" })).status).toBe(200);
  const [first, second] = rig.seen;
  expect(JSON.stringify(rig.seen)).not.toContain(token.split(".")[2]);
  const { aud, sandbox_id, exp, sub } = claimsOf(token);
  expect(claimsOf(first?.headers.authorization)).toMatchObject({ aud, sandbox_id, exp, sub });
  expect(second?.headers.authorization, "made once").toBe(first?.headers.authorization);
  expect(first?.body).toBe("{}");

  const inner = first?.headers.authorization ?? "";
  expect((await rig.ask({ path: "/v1/store", headers: { authorization: inner } })).status).toBe(401);
  expect((await rig.ask({ label: `8000-${sandboxA}`, headers: { authorization: inner } })).status).toBe(401);
});

test("who shows no token of this sandbox is refused by the edge, and the agent hears nothing", async () => {
  await using rig = await Rig.startChannel();
  const now = Math.floor(Date.now() / 1000);
  const tokens = [
    undefined,
    "rubbish",
    await rig.gateway.token(sandboxB),
    await rig.gateway.token(sandboxA, { exp: now - 1 }),
    await rig.gateway.token(sandboxA, { nbf: now + 60 }),
    await rig.gateway.portToken(sandboxA, 8000),
  ];
  for (const token of tokens) {
    const headers = token === undefined ? {} : { authorization: `Bearer ${token}` };
    const refused = await rig.ask({ path: "/v1/store", headers });
    expect([refused.status, refused.headers["www-authenticate"]]).toEqual([401, "Bearer"]);
  }
  expect(rig.seen).toEqual([]);
});

test("an agent without a channel is not reached, with whatever token and at whichever port", async () => {
  await using rig = await Rig.startChannel();
  const headers = await rig.bearer();
  const route = rig.gateway.routeOf(sandboxA);
  rig.gateway.set({ ...route, channelKey: new Uint8Array(), epoch: route.epoch + 1n, allPortsPublic: true });
  const reached: string[] = [];
  rig.agent.on("tlsClientError", () => reached.push("a connection"));
  const statuses = async (): Promise<number[]> =>
    await Promise.all([
      rig.ask({ path: "/v1/store", headers }).then(({ status }) => status),
      rig.ask({ path: "/v1/store" }).then(({ status }) => status),
      rig.ask({ label: `8000-${sandboxA}` }).then(({ status }) => status),
    ]);
  await expect.poll(statuses).toEqual([503, 503, 503]);
  expect([rig.seen, reached]).toEqual([[], []]);
});

test("a browser's WebSocket shows its token as a subprotocol, which the edge keeps", async () => {
  await using rig = await Rig.startChannel();
  const token = await rig.gateway.token(sandboxA);
  const open = async (offered: string, more = ""): Promise<string> => {
    const socket = await rig.connect();
    let text = "";
    socket.on("data", (chunk: Buffer) => (text += chunk.toString()));
    socket.write(
      `GET /v1/processes/x/attach HTTP/1.1\r\nHost: ${rig.host()}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n` +
        `Sec-WebSocket-Protocol: ${offered}\r\n${more}\r\n`,
    );
    await until(() => text.includes("\r\n\r\n"));
    socket.destroy();
    return text.slice(9, 12);
  };
  expect(await open(`v5.channel.k8s.io, cloche.token.${token}`)).toBe("101");
  expect(await open(`cloche.token.${token}`)).toBe("101");
  expect(rig.seen.map(({ headers }) => headers["sec-websocket-protocol"])).toEqual([
    "v5.channel.k8s.io",
    undefined,
  ]);
  expect(claimsOf(rig.seen[0]?.headers.authorization)).toMatchObject({ aud: sandboxA });
  expect(JSON.stringify(rig.seen)).not.toContain(token.split(".")[2]);
  for (const bad of [
    "v5.channel.k8s.io",
    "cloche.token.x",
    `cloche.token.${await rig.gateway.token(sandboxB)}`,
  ])
    expect(await open(bad)).toBe("401");
  // An Authorization header comes first, and a token in a subprotocol is accepted only for a WebSocket.
  expect(await open(`cloche.token.${token}`, "Authorization: Bearer x\r\n")).toBe("401");
  const headers = { "sec-websocket-protocol": `cloche.token.${token}` };
  expect((await rig.ask({ path: "/v1/store", headers })).status).toBe(401);
  expect(rig.seen).toHaveLength(2);
});

test("the abort of an exec and the tunnel to a port have inner tokens too", async () => {
  await using rig = await Rig.startChannel();
  const token = await rig.gateway.token(sandboxA);
  const authorization = `Bearer ${token}`;
  rig.onAgent = () => undefined;
  const request = rig.request({ method: "POST", path: "/v1/exec", headers: { authorization } });
  request.on("error", () => undefined);
  request.end("{}");
  await until(() => rig.edge !== undefined && rig.agent.listening);
  await once(rig.agent, "request");
  request.destroy();
  await until(() => rig.aborted.length > 0);
  expect(claimsOf(rig.aborted[0]?.headers.authorization)).toMatchObject({ aud: sandboxA });
  expect(JSON.stringify(rig.aborted)).not.toContain(token);

  const user = http.createServer((asked, response) => response.end(JSON.stringify(asked.headers)));
  user.listen(0, "127.0.0.1");
  await once(user, "listening");
  const { port } = user.address() as AddressInfo;
  const tunnels: unknown[] = [];
  rig.agent.on("upgrade", (asked: http.IncomingMessage) =>
    tunnels.push(claimsOf(asked.headers.authorization)),
  );
  const answer = await rig.ask({ label: `${port}-${sandboxA}`, headers: { authorization } });
  expect(answer.status).toBe(200);
  expect(tunnels).toEqual([expect.objectContaining({ aud: sandboxA, port })]);
  user.closeAllConnections();
  user.close();
});

test("whoever listens in the agent's place gets nothing, and the client 503", async () => {
  await using rig = await Rig.startChannel();
  let heard = "";
  const thief = createServer(
    { ciphers: channel.cipher, pskCallback: () => preSharedKeyOf(channelKeyOf("not the agent's")) },
    (socket) => socket.on("data", (chunk: Buffer) => (heard += chunk.toString("latin1"))),
  );
  thief.listen(0, "127.0.0.1");
  await once(thief, "listening");
  rig.gateway.set({ sandboxId: sandboxA, agentPort: (thief.address() as AddressInfo).port, epoch: 2n });
  const headers = { authorization: `Bearer ${await rig.gateway.token(sandboxA)}` };
  expect((await rig.ask({ path: "/v1/store", headers })).status).toBe(503);
  expect(heard).toBe("");
  thief.close();
});
