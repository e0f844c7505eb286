/**
 * What a member of the cluster, whose computer may have been taken over, can make another part hold or do.
 */
import { once } from "node:events";
import http2, { type ClientHttp2Session, type ClientHttp2Stream } from "node:http2";
import { connect, type TLSSocket } from "node:tls";
import { listenerBounds, memberBounds, silentLog } from "@cloche/base";
import { RouteService } from "@cloche/protocol/edge";
import { HostStorageService } from "@cloche/protocol/host-registry";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { afterEach, beforeAll, describe, expect, it } from "vitest";
import { ClusterPort } from "./cluster-port.ts";
import type { Identity } from "./identity.ts";
import type { MemberBounds } from "./member-calls.ts";
import { connectTo } from "./rpc-client.ts";
import { RpcServer } from "./rpc-server.ts";
import { TestInstallation } from "./testing/installation.ts";
import { clientSettings, serverSettings } from "./tls-settings.ts";

const mebibyte = 1024 * 1024;
const member: Identity = { role: "host", id: "h-1" };
const gateway: Identity = { role: "gateway", id: "g-1" };
const hold = `/${HostStorageService.typeName}/HoldObject`;
const claim = `/${HostStorageService.typeName}/ClaimSweep`;
const close: (() => unknown)[] = [];
let installation: TestInstallation;
beforeAll(async () => {
  installation = await TestInstallation.open();
});
afterEach(async () => {
  for (const one of close.splice(0).toReversed()) await one();
});

/** A gateway's port; answers the port number. HoldObject waits for `released`; ClaimSweep answers `answerBytes`. */
async function serve(
  bounds: Partial<MemberBounds> = {},
  { released = Promise.resolve(), answerBytes = 0, connectionsOfMember = 100 } = {},
) {
  const rpc = new RpcServer(
    (router) => {
      router.service(HostStorageService, {
        async holdObject() {
          await released;
          return {};
        },
        claimSweep: async () => ({ garbage: ["x".repeat(answerBytes)] }),
      });
      router.service(RouteService, {});
    },
    silentLog,
    bounds,
  );
  const port = await ClusterPort.listen({
    tls: serverSettings(await installation.credentials(gateway)),
    protocols: { h2: { roles: ["host", "edge"], serve: (socket) => rpc.serve(socket) } },
    address: "127.0.0.1",
    port: 0,
    log: silentLog,
    connectionsOfMember,
  });
  close.push(
    () => port.close(),
    () => rpc.close(),
  );
  return { port: port.port, rpc };
}

async function dial(port: number, identity = member): Promise<TLSSocket> {
  const tls = clientSettings(await installation.credentials(identity), { role: "gateway" });
  const socket = connect({ ...tls, host: "127.0.0.1", port, ALPNProtocols: ["h2"] });
  close.push(() => socket.destroy());
  return socket.on("error", () => undefined);
}

async function sessionOf(port: number, identity = member): Promise<ClientHttp2Session> {
  const socket = await dial(port, identity);
  const session = http2.connect("https://gateway", { createConnection: () => socket });
  session.on("error", () => undefined);
  await once(session, "remoteSettings");
  return session;
}

async function clientOf(port: number) {
  const credentials = await installation.credentials(member);
  const { transport, close: end } = connectTo(`127.0.0.1:${port}`, gateway, () => credentials);
  close.push(end);
  return createClient(HostStorageService, transport);
}

function begin(session: ClientHttp2Session, path: string): ClientHttp2Stream {
  const headers = { ":method": "POST", ":path": path, "content-type": "application/proto" };
  const stream = session.request(headers, { endStream: false });
  return stream.on("error", () => undefined);
}
const whole = (stream: ClientHttp2Stream): Promise<unknown> =>
  new Promise((resolve) => {
    stream.once("close", () => resolve(stream.rstCode)).resume();
  });

describe("a member of the cluster", () => {
  it("may have two calls under way for each of 1,000 machines", async () => {
    const { maxConcurrentStreams, initialWindowSize } = (await sessionOf((await serve()).port))
      .remoteSettings;
    expect(maxConcurrentStreams).toBe(memberBounds.streams);
    expect(initialWindowSize).toBe(memberBounds.streamWindowBytes);
  });

  // Beyond 100, which a caller takes for the limit until it has heard of it.
  it("waits with calls beyond its streams, and gets all answers", async () => {
    const { promise: released, resolve: release } = Promise.withResolvers<void>();
    const { port } = await serve({ streams: 150 }, { released });
    const storage = await clientOf(port);
    const calls = Array.from({ length: 400 }, () => storage.holdObject({}));
    release();
    expect(await Promise.all(calls)).toHaveLength(400);
  });

  it("may name all packs that a checkpoint can have, and no much larger request is read", async () => {
    const { port } = await serve();
    const storage = await clientOf(port);
    const packs = Array.from({ length: 65_534 }, () => ({ id: `pack-${"a".repeat(20)}`, bytes: 2 ** 25 }));
    expect(await storage.holdObject({ inherited: packs, own: packs })).toBeDefined();
    const large = storage.holdObject({ name: "x".repeat(memberBounds.requestBytes) });
    await expect(large).rejects.toMatchObject({ code: Code.ResourceExhausted });
  });

  it("holds a bounded number of bytes with all its requests together, and harms no other member", async () => {
    const { port } = await serve({ heldBytes: mebibyte });
    const sessions = [await sessionOf(port), await sessionOf(port)];
    const streams = sessions.flatMap((session) =>
      Array.from({ length: 8 }, () => {
        const stream = begin(session, hold);
        stream.write(Buffer.alloc(128 * 1024));
        return stream;
      }),
    );
    expect(await Promise.race(streams.map(whole))).toBe(http2.constants.NGHTTP2_ENHANCE_YOUR_CALM);
    const other = begin(await sessionOf(port, { role: "edge", id: "e-1" }), hold);
    other.end();
    expect(await whole(other)).toBe(http2.constants.NGHTTP2_NO_ERROR);
    expect(streams.filter(({ closed }) => !closed).length).toBeLessThanOrEqual(8);
  });

  it("and all members together hold a bounded number", async () => {
    const { port } = await serve({ processBytes: mebibyte });
    const sessions = [await sessionOf(port), await sessionOf(port, { role: "edge", id: "e-1" })];
    const streams = sessions.flatMap((session) =>
      Array.from({ length: 6 }, () => {
        const stream = begin(session, hold);
        stream.write(Buffer.alloc(128 * 1024));
        return stream;
      }),
    );
    expect(await Promise.race(streams.map(whole))).toBe(http2.constants.NGHTTP2_ENHANCE_YOUR_CALM);
  });

  it("cannot let answers pile up that it does not read", async () => {
    const { port } = await serve({ heldBytes: mebibyte }, { answerBytes: 300 * 1024 });
    const socket = await dial(port);
    const settings = { initialWindowSize: 0 };
    const session = http2.connect("https://gateway", { createConnection: () => socket, settings });
    session.on("error", () => undefined);
    const codes = Array.from({ length: 8 }, () => {
      const stream = begin(session, claim);
      stream.end();
      return whole(stream);
    });
    expect(await Promise.race(codes)).toBe(http2.constants.NGHTTP2_ENHANCE_YOUR_CALM);
  });

  it("has a time for a request", async () => {
    const { port } = await serve({ bodyMs: 200 });
    const stream = begin(await sessionOf(port), hold);
    stream.write("x");
    expect(await whole(stream)).toBe(http2.constants.NGHTTP2_CANCEL);
  });

  it("gives up its oldest connection for one too many", async () => {
    const { port, rpc } = await serve({ connections: 3 });
    const first = await sessionOf(port);
    const others = [await sessionOf(port), await sessionOf(port)];
    await sessionOf(port, { role: "edge", id: "e-1" });
    expect(first.closed).toBe(false);
    const gone = once(first, "close");
    const newest = await sessionOf(port);
    await gone;
    expect([...others, newest].map(({ closed }) => closed)).toEqual([false, false, false]);
    await expect.poll(() => rpc.connections).toBe(4);
  });

  it("gives up its oldest connection, also one that it has said good-bye to and keeps open", async () => {
    const { port, rpc } = await serve({ connections: 3 });
    const settings = Buffer.from([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    const goAway = Buffer.concat([Buffer.from([0, 0, 8, 7, 0, 0, 0, 0, 0]), Buffer.alloc(8)]);
    const preface = Buffer.concat([Buffer.from("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), settings, goAway]);
    for (let count = 0; count < 8; count++) {
      const tls = clientSettings(await installation.credentials(member), { role: "gateway" });
      // The types do not know `allowHalfOpen`.
      const options = { ...tls, host: "127.0.0.1", port, ALPNProtocols: ["h2"], allowHalfOpen: true };
      const socket = connect(options);
      close.push(() => socket.destroy());
      socket.on("error", () => undefined).resume();
      await once(socket, "secureConnect");
      socket.write(preface);
    }
    await expect.poll(() => rpc.connections).toBe(3);
  });

  it("leaves places of the port to others", async () => {
    const { port } = await serve({}, { connectionsOfMember: 2 });
    const kept = [await sessionOf(port), await sessionOf(port)];
    const refused = await dial(port);
    await once(refused.resume(), "close");
    await sessionOf(port, { role: "edge", id: "e-1" });
    kept[0]?.destroy();
    await expect.poll(async () => !(await ended(await dial(port)))).toBe(true);
  });

  it.each([
    ["pings", Buffer.concat([Buffer.from([0, 0, 8, 6, 0, 0, 0, 0, 0]), Buffer.alloc(8)])],
    ["settings", Buffer.from([0, 0, 0, 4, 0, 0, 0, 0, 0])],
    ["window updates", Buffer.from([0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0, 1])],
  ])("is cut off for a flood of %s", async (_, frame) => {
    const { port } = await serve();
    const socket = (await dial(port)).resume();
    const gone = once(socket, "close");
    // The preface and empty settings (RFC 9113, 3.4).
    socket.write("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    socket.write(Buffer.from([0, 0, 0, 4, 0, 0, 0, 0, 0]));
    const flood = setInterval(() => socket.write(Buffer.concat(Array<Buffer>(500).fill(frame))), 5);
    await gone;
    clearInterval(flood);
  });

  it("may end all its calls at once, and is cut off for resetting streams without end", async () => {
    // A rate that a busy computer reaches as well.
    const never = new Promise<void>(() => undefined);
    const { port, rpc } = await serve({ streamResetsPerSecond: 1 }, { released: never });
    const session = await sessionOf(port);
    const streams = Array.from({ length: memberBounds.streams }, () => begin(session, hold));
    await new Promise((resolve) => session.ping(resolve));
    for (const stream of streams) stream.close(http2.constants.NGHTTP2_CANCEL);
    await new Promise((resolve) => session.ping(resolve));
    expect(rpc.connections).toBe(1);
    const resets = setInterval(() => {
      for (let count = 0; count < 20; count += 1) begin(session, hold).close();
    }, 5);
    await expect.poll(() => rpc.connections, { timeout: 5_000 }).toBe(0);
    clearInterval(resets);
  });
});

const ended = async (socket: TLSSocket): Promise<boolean> => {
  socket.resume();
  const over = once(socket, "close").then(() => true);
  return await Promise.race([over, new Promise<boolean>((resolve) => setTimeout(resolve, 200, false))]);
};

describe("a caller of a member", () => {
  it("reads the largest answer, and none without end", async () => {
    const largest = memberBounds.answerBytes - 1_024;
    const { garbage } = await (await clientOf((await serve({}, { answerBytes: largest })).port)).claimSweep(
      {},
    );
    expect(garbage[0]).toHaveLength(largest);
    const { port } = await serve({}, { answerBytes: memberBounds.answerBytes + 1 });
    const storage = await clientOf(port);
    const problem = await storage.claimSweep({}).catch((error: unknown) => ConnectError.from(error).code);
    expect(problem).toBe(Code.ResourceExhausted);
  });

  it.each([
    ["pings", Buffer.concat([Buffer.from([0, 0, 8, 6, 0, 0, 0, 0, 0]), Buffer.alloc(8)])],
    ["window updates", Buffer.from([0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0, 1])],
  ])("ends a connection whose other side floods it with %s", async (_, frame) => {
    let flooding: ServerHttp2Flood | undefined;
    const port = await ClusterPort.listen({
      tls: serverSettings(await installation.credentials(gateway)),
      protocols: {
        h2: { roles: ["host"], serve: (socket) => (flooding = new ServerHttp2Flood(socket, frame)) },
      },
      address: "127.0.0.1",
      port: 0,
      log: silentLog,
    });
    close.push(() => port.close());
    const storage = await clientOf(port.port);
    await expect(storage.claimSweep({})).rejects.toThrow();
    await flooding?.gone;
  });
});

/** A false part of a cluster: never answers, and sends this frame as fast as it is read. */
class ServerHttp2Flood {
  readonly gone: Promise<void>;

  constructor(socket: TLSSocket, frame: Buffer) {
    const many = Buffer.concat(Array<Buffer>(listenerBounds.controlFramesPerSecond).fill(frame));
    socket.on("error", () => undefined).resume();
    socket.write(Buffer.from([0, 0, 0, 4, 0, 0, 0, 0, 0]));
    const flood = setInterval(() => socket.write(many), 5);
    this.gone = new Promise<void>((resolve) => {
      socket.once("close", () => {
        clearInterval(flood);
        resolve();
      });
    });
  }
}
