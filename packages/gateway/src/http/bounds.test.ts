/** What a caller without an API key can make the gateway hold: connections, streams and bytes. */
import { once } from "node:events";
import http2, { type ClientHttp2Session, type ClientHttp2Stream } from "node:http2";
import net, { type Socket } from "node:net";
import { ConnectionPlaces, listenerBounds } from "@cloche/base";
import { Health } from "@cloche/protocol/grpc-health";
import { Code, createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { gatewayLimits } from "../limits.ts";
import { type GatewayFixture, openFixture } from "../testing/gateway-fixture.ts";
import { listen } from "./listener.ts";

let f: GatewayFixture;
let session: ClientHttp2Session;
beforeEach(async () => {
  f = await openFixture();
  session = http2.connect(`http://127.0.0.1:${f.listener.port}`);
  session.on("error", () => undefined);
});
afterEach(async () => {
  session.destroy();
  await f.close();
});

const check = "/grpc.health.v1.Health/Check";
const create = "/cloche.public.v1.SandboxService/CreateSandbox";

function begin(path: string, headers: Record<string, string> = {}): ClientHttp2Stream {
  const named = { ":method": "POST", ":path": path, "content-type": "application/json", ...headers };
  const stream = session.request(named, { endStream: false });
  return stream.on("error", () => undefined);
}

async function statusOf(stream: ClientHttp2Stream): Promise<unknown> {
  const [headers] = (await once(stream, "response")) as [Record<string, unknown>];
  stream.resume();
  return headers[":status"];
}

describe("without a key", () => {
  it("a body of more than 16 KiB is refused, and of all of one connection together", async () => {
    const large = begin(check);
    large.write(Buffer.alloc(listenerBounds.strangerBytes + 1));
    expect(await statusOf(large)).toBe(429);
    const begun = Array.from({ length: 10 }, () => {
      const stream = begin(check);
      stream.write(Buffer.alloc(listenerBounds.strangerBytes / 8));
      return stream;
    });
    expect(await Promise.race(begun.map(statusOf))).toBe(429);
    for (const stream of begun) stream.close();
    await expect.poll(() => begun.every((stream) => stream.closed)).toBe(true);
    const small = begin(check);
    small.end("{}");
    expect(await statusOf(small)).toBe(200);
  });

  it("no body of a call is read that needs one", async () => {
    const refused = begin(create);
    refused.write(Buffer.alloc(1024));
    expect(await statusOf(refused)).toBe(401);
  });

  it("a stream ends that goes on after its answer", async () => {
    const stream = begin(create, { authorization: "Bearer cloche_nobody" });
    stream.write("{");
    expect(await statusOf(stream)).toBe(401);
    expect(stream.closed).toBe(false);
    await once(stream, "close");
  }, 10_000);

  it("the oldest watch of health gives way to a new one, and one address does not have them all", async () => {
    const left = new AbortController();
    const baseUrl = `http://127.0.0.1:${f.listener.port}`;
    const watchesOf = (localAddress: string): (() => AsyncIterator<unknown>) => {
      const nodeOptions = { localAddress } as http2.ClientSessionOptions;
      const health = createClient(Health, createGrpcTransport({ baseUrl, nodeOptions }));
      return () => health.watch({}, { signal: left.signal })[Symbol.asyncIterator]();
    };
    const addresses = ["127.0.0.2", "127.0.0.3", "127.0.0.4"].map(watchesOf);
    const open: AsyncIterator<unknown>[] = [];
    for (const watch of addresses) {
      const own = Array.from({ length: gatewayLimits.openStreamsOfAddress }, watch);
      await Promise.all(own.map((one) => one.next()));
      await expect(watch().next()).rejects.toMatchObject({ code: Code.ResourceExhausted });
      open.push(...own);
    }
    const cut = open.slice(0, open.length - gatewayLimits.openStreams).map((one) => one.next());
    for (const one of cut) await expect(one).rejects.toThrow();
    const last = open.at(-1)?.next();
    left.abort();
    await expect(last).rejects.toMatchObject({ code: Code.Canceled });
  });
});

describe("a connection", () => {
  it("has so many streams at most", async () => {
    await once(session, "remoteSettings");
    const { maxConcurrentStreams, initialWindowSize } = session.remoteSettings;
    expect(maxConcurrentStreams).toBe(listenerBounds.streams);
    expect(initialWindowSize).toBe(listenerBounds.streamWindowBytes);
  });

  it.each([
    ["pings", Buffer.concat([Buffer.from([0, 0, 8, 6, 0, 0, 0, 0, 0]), Buffer.alloc(8)])],
    ["window updates", Buffer.from([0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0, 1])],
  ])("ends that sends a flood of %s", async (_what, frame) => {
    const socket = net.connect(f.listener.port, "127.0.0.1");
    socket.on("error", () => undefined).resume();
    const ended = new Promise((resolve) => socket.once("close", resolve));
    // Node's client would wait for answers: the preface, empty settings, then these alone (RFC 9113, 3.4 and 6.7).
    socket.write("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    socket.write(Buffer.from([0, 0, 0, 4, 0, 0, 0, 0, 0]));
    const many = Buffer.concat(Array<Buffer>(500).fill(frame));
    const flood = setInterval(() => socket.write(many), 5);
    await ended;
    clearInterval(flood);
  });

  it("ends that resets its streams as fast as it opens them", async () => {
    const ended = new Promise((resolve) => session.once("close", resolve));
    const resets = setInterval(() => {
      for (let count = 0; count < 50 && !session.closed; count += 1) begin(check).close();
    }, 5);
    await ended;
    clearInterval(resets);
  });
});

describe("a listener", () => {
  const silent = async (port: number): Promise<Socket> => {
    const socket = net.connect(port, "127.0.0.1");
    socket.on("error", () => undefined).resume();
    await once(socket, "connect");
    return socket;
  };

  it("closes connections that ask nothing when it is full, and keeps those that are answered", async () => {
    const answers: (() => void)[] = [];
    const places = new ConnectionPlaces({ connections: 4, connectionsPerAddress: 4 });
    const listener = await listen(
      (_request, response) => void answers.push(() => response.end("late")),
      "127.0.0.1",
      0,
      places,
    );
    const url = `http://127.0.0.1:${listener.port}`;
    const first = fetch(url);
    const other = http2.connect(url);
    const stream = other.request({ ":path": "/" });
    await expect.poll(() => answers.length).toBe(2);
    const silents = await Promise.all(Array.from({ length: 8 }, () => silent(listener.port)));
    await expect.poll(() => silents.filter(({ closed }) => closed).length).toBe(6);
    expect(places.size).toBe(4);
    for (const answer of answers) answer();
    expect(await (await first).text()).toBe("late");
    expect(await statusOf(stream)).toBe(200);
    for (const socket of silents) socket.destroy();
    other.destroy();
    await listener.close();
  });
});
