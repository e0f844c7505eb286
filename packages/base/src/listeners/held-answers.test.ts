/** Answers that clients do not take, of HTTP/1.1 and HTTP/2. */
import { EventEmitter, once } from "node:events";
import {
  createServer as createHttp1,
  type RequestListener,
  type Server,
  type ServerResponse,
} from "node:http";
import http2, { type ClientHttp2Session, type ClientHttp2Stream, type Http2Server } from "node:http2";
import net, { type AddressInfo, type Socket } from "node:net";
import { afterEach, describe, expect, it } from "vitest";
import { HeldAnswers } from "./held-answers.ts";

const mib = 1_048_576;
/** More than the kernel takes of a connection. */
const large = Buffer.alloc(16 * mib);
const teamBytes = 40 * mib;
let held: HeldAnswers;
let answered = 0;
let server: Server | Http2Server;
const opened: (Socket | ClientHttp2Session)[] = [];
afterEach(async () => {
  for (const one of opened.splice(0)) one.destroy();
  server.close();
  await expect.poll(() => held.bytes).toBe(0);
});

class FakeAnswer extends EventEmitter {
  writableLength = 0;
  destroyed = false;
  write = (): boolean => false;
  end = (): this => this;
  hold(bytes: number): void {
    this.writableLength = bytes;
    this.write();
  }
  destroy(): void {
    this.destroyed = true;
  }
}

/** Answers each request with 16 MiB; its path is the team's name. */
async function listen(kind: "HTTP/1.1" | "HTTP/2", processBytes: number): Promise<number> {
  held = new HeldAnswers({ teamBytes, processBytes });
  const answer: RequestListener = (request, response) => {
    held.watch(response, request.url ?? "");
    response.end(large);
    answered += 1;
  };
  server = kind === "HTTP/1.1" ? createHttp1(answer) : http2.createServer(answer as never);
  await once(server.listen(0, "127.0.0.1"), "listening");
  return (server.address() as AddressInfo).port;
}

/** Begins to read; resolves with the bytes of the answer when it is over. */
type Read = () => Promise<number>;
type Ask = (port: number, team: string) => Promise<Read>;

const readAll =
  (from: Socket | ClientHttp2Stream, closed: Promise<void>): Read =>
  async () => {
    let bytes = 0;
    from.on("data", (piece: Buffer) => (bytes += piece.length)).resume();
    await closed;
    return bytes;
  };
const closeOf = (one: Socket | ClientHttp2Stream): Promise<void> =>
  new Promise((resolve) => void one.on("error", () => undefined).once("close", resolve));

const askHttp1: Ask = async (port, team) => {
  const socket = net.connect(port, "127.0.0.1").pause();
  opened.push(socket);
  const closed = closeOf(socket);
  const before = answered;
  socket.write(`GET ${team} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n`);
  await expect.poll(() => answered).toBe(before + 1);
  return readAll(socket, closed);
};

const askHttp2: Ask = async (port, team) => {
  const session = http2.connect(`http://127.0.0.1:${port}`);
  opened.push(session);
  const stream = session.request({ ":path": team });
  const closed = closeOf(stream);
  await once(stream, "response");
  return readAll(stream, closed);
};

describe.each<["HTTP/1.1" | "HTTP/2", Ask]>([
  ["HTTP/1.1", askHttp1],
  ["HTTP/2", askHttp2],
])("an answer of %s that is not taken", (kind, ask) => {
  /** Places of those that were cut. */
  const cut = async (of: Read[]): Promise<number[]> => {
    const ends = await Promise.all(of.map(async (read) => (await read()) >= large.length));
    return ends.flatMap((isWhole, at) => (isWhole ? [] : [at]));
  };

  it("gives way to newer ones of its team beyond the team's bound, and others' do not", async () => {
    const port = await listen(kind, 200 * mib);
    const other = await ask(port, "/other");
    const own = [await ask(port, "/team"), await ask(port, "/team"), await ask(port, "/team")];
    expect(held.bytes).toBeLessThanOrEqual(teamBytes + large.length + mib);
    expect(await cut([other])).toEqual([]);
    expect(await cut(own)).toEqual([0]);
  });

  it("gives way beyond the bound of the process if its team holds most", async () => {
    const port = await listen(kind, 60 * mib);
    const first = await ask(port, "/a");
    const most = [await ask(port, "/b"), await ask(port, "/b")];
    const last = await ask(port, "/c");
    expect(held.bytes).toBeLessThanOrEqual(60 * mib);
    expect(await cut([first, ...most, last])).toEqual([1]);
  });
});

it("an answer that goes on is kept before one that stands still", () => {
  held = new HeldAnswers({ teamBytes: 10, processBytes: 100 });
  server = createHttp1();
  const answers = ["still", "moves", "new"].map(() => new FakeAnswer());
  const [still, moves, fresh] = answers as [FakeAnswer, FakeAnswer, FakeAnswer];
  for (const one of answers) held.watch(one as unknown as ServerResponse, "team");
  moves.hold(4);
  still.hold(4);
  moves.writableLength = 3;
  moves.emit("drain");
  fresh.hold(4);
  expect(answers.map(({ destroyed }) => destroyed)).toEqual([true, false, false]);
  for (const one of answers) one.emit("close");
});
