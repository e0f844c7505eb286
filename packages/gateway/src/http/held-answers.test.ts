/**
 * What a team can make the gateway hold by answers that its clients do not take, and how long lists of others wait.
 */
import { once } from "node:events";
import http2, { type ClientHttp2Session, type ClientHttp2Stream, constants } from "node:http2";
import { heldAnswers, listenerBounds } from "@cloche/base";
import { afterEach, beforeEach, expect, it } from "vitest";
import { type GatewayFixture, openFixture } from "../testing/gateway-fixture.ts";

const list = "/cloche.public.v1.SandboxService/ListSandboxes";
let f: GatewayFixture;
const sessions: ClientHttp2Session[] = [];
beforeEach(async () => void (f = await openFixture()));
afterEach(async () => {
  for (const session of sessions.splice(0)) session.destroy();
  await f.close();
});

/** Makes a list long; returns its length. */
async function makeSandboxes(count: number): Promise<number> {
  const metadata = Object.fromEntries(Array.from({ length: 64 }, (_, at) => [`key${at}`, "x".repeat(1_024)]));
  for (let made = 0; made < count; made += 1)
    expect(await f.call("CreateSandbox", { metadata })).toMatchObject({ status: 200 });
  return JSON.stringify((await f.call("ListSandboxes")).body).length;
}

/** Begins calls whose answers are not taken: no window is opened. */
async function beginUnread(count: number, contentType: string, body: Buffer): Promise<ClientHttp2Stream[]> {
  const session = http2.connect(`http://127.0.0.1:${f.listener.port}`, {
    settings: { initialWindowSize: 0 },
  });
  sessions.push(session.on("error", () => undefined));
  await once(session, "remoteSettings");
  return Array.from({ length: count }, () => {
    const headers = { authorization: `Bearer ${f.secret}`, "content-type": contentType, te: "trailers" };
    const stream = session.request({ ":method": "POST", ":path": list, ...headers });
    stream.on("error", () => undefined).end(body);
    return stream;
  });
}

it.each([
  ["JSON", "application/json", Buffer.from("{}")],
  ["Connect with protobuf", "application/proto", Buffer.alloc(0)],
  ["gRPC", "application/grpc", Buffer.alloc(5)],
  ["gRPC-Web", "application/grpc-web", Buffer.alloc(5)],
])("answers that a team's clients do not take are bounded (%s)", async (_what, contentType, body) => {
  const length = await makeSandboxes(50);
  const fitting = Math.floor(listenerBounds.teamBytes / length);
  const begun: ClientHttp2Stream[] = [];
  for (let opened = 0; opened < fitting + 8; opened += 4)
    begun.push(...(await beginUnread(4, contentType, body)));
  const open = (): number => begun.filter(({ closed }) => !closed).length;
  await expect.poll(() => open() <= fitting + 1, { timeout: 15_000 }).toBe(true);
  expect(open()).toBeGreaterThan(fitting / 2);
  for (const { closed, rstCode } of begun)
    if (closed) expect(rstCode).toBe(constants.NGHTTP2_ENHANCE_YOUR_CALM);
  expect((await f.call("ListSandboxes")).status).toBe(200);
  for (const session of sessions) session.destroy();
  await expect.poll(() => heldAnswers.bytes).toBe(0);
});
