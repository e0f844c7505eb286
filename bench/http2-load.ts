/**
 * A load generator for one connection of HTTP/2 that costs little itself: so many streams at a time, each answer told by its DATA. After the
 * first request the headers are references to the table that it made, as any client sends them (RFC 7541, 6.1).
 */
import { once } from "node:events";
import tls from "node:tls";

const types = { data: 0, headers: 1, reset: 3, settings: 4, goaway: 7, windowUpdate: 8 } as const;
const endOfStream = 1;
const wholeRequest = 5;
const ack = 1;
/** `:status: 200` in the static table. */
const status200 = 0x88;

function frame(type: number, flags: number, streamId: number, payload: Uint8Array): Buffer {
  const head = Buffer.alloc(9);
  head.writeUIntBE(payload.length, 0, 3);
  head.writeUInt8(type, 3);
  head.writeUInt8(flags, 4);
  head.writeUInt32BE(streamId, 5);
  return Buffer.concat([head, payload]);
}

/** A length of up to 7 bits and one byte more. */
function literal(text: string): Buffer {
  const rest = text.length - 127;
  const length = rest < 0 ? [text.length] : [127, (rest & 127) | 128, rest >> 7];
  return Buffer.concat([Buffer.from(length), Buffer.from(text)]);
}

/** GET over https; each value is put into the table, by the number of its name in the static one. */
function firstBlock(values: Record<number, string>): Buffer {
  const entries = Object.entries(values).map(([name, text]) =>
    Buffer.concat([Buffer.of(0x40 | Number(name)), literal(text)]),
  );
  return Buffer.concat([Buffer.of(0x82, 0x87), ...entries]);
}

export class Http2LoadClient {
  readonly #socket: tls.TLSSocket;
  readonly #block: Buffer;
  #streamId = 1;
  #received: Buffer = Buffer.alloc(0);
  #open = 0;
  #left = { count: 0 };
  #done: ((error?: Error) => void) | undefined;

  static async connect(
    target: { port: number; tls: { ca: string; servername: string } },
    request: { path: string; authorization: string },
  ): Promise<Http2LoadClient> {
    const { port } = target;
    const socket = tls.connect({ port, host: "127.0.0.1", ALPNProtocols: ["h2"], ...target.tls });
    await once(socket, "secureConnect");
    const { servername } = target.tls;
    const values = { 1: servername, 4: request.path, 19: "*/*", 23: request.authorization, 58: "bench" };
    const client = new Http2LoadClient(socket, Object.keys(values).length);
    await client.#begin(firstBlock(values));
    return client;
  }

  constructor(socket: tls.TLSSocket, entries: number) {
    this.#socket = socket;
    // The newest entry is number 62, and pseudo headers come first as they did.
    const references = Array.from({ length: entries }, (_, index) => 0x80 | (61 + entries - index));
    this.#block = Buffer.from([0x82, 0x87, ...references]);
    socket.on("data", (chunk: Buffer) => this.#take(chunk));
    socket.on("error", (error) => this.#done?.(error));
    socket.on("close", () => this.#done?.(new Error("the server closed the connection")));
  }

  #begin(block: Buffer): Promise<void> {
    this.#socket.write("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    this.#socket.write(frame(types.settings, 0, 0, Buffer.alloc(0)));
    this.#socket.write(frame(types.windowUpdate, 0, 0, Buffer.of(0x3f, 0, 0, 0)));
    return new Promise((resolve, reject) => {
      this.#done = (error) => (error === undefined ? resolve() : reject(error));
      this.#open = 1;
      this.#socket.write(frame(types.headers, wholeRequest, this.#streamId, block));
      this.#streamId += 2;
    });
  }

  /** Requests until `count` are answered, `streams` of them at a time. */
  drain(count: number, streams: number): Promise<void> {
    return new Promise((resolve, reject) => {
      if (this.#socket.destroyed) return reject(new Error("the connection is closed"));
      this.#done = (error) => (error === undefined ? resolve() : reject(error));
      this.#left = { count };
      this.#send(streams);
    });
  }

  #send(streams: number): void {
    const frames: Buffer[] = [];
    for (let sent = 0; sent < streams && this.#left.count > 0; sent += 1) {
      this.#left.count -= 1;
      this.#open += 1;
      frames.push(frame(types.headers, wholeRequest, this.#streamId, this.#block));
      this.#streamId += 2;
    }
    if (frames.length > 0) this.#socket.write(Buffer.concat(frames));
  }

  #take(chunk: Buffer): void {
    const bytes = this.#received.length === 0 ? chunk : Buffer.concat([this.#received, chunk]);
    let at = 0;
    let answered = 0;
    for (;;) {
      if (bytes.length < at + 9) break;
      const end = at + 9 + bytes.readUIntBE(at, 3);
      if (bytes.length < end) break;
      answered += this.#frame(bytes.readUInt8(at + 3), bytes.readUInt8(at + 4), bytes.subarray(at + 9, end));
      at = end;
    }
    this.#received = bytes.subarray(at);
    if (answered === 0) return;
    this.#open -= answered;
    this.#send(answered);
    if (this.#open > 0) return;
    const done = this.#done;
    this.#done = undefined;
    done?.();
  }

  /** Answers how many answers are whole by this frame. */
  #frame(type: number, flags: number, payload: Buffer): number {
    if (type === types.data) return (flags & endOfStream) === 0 ? 0 : 1;
    if (type === types.headers) {
      // Before it may stand the size of the table that the server keeps.
      const [first = 0, second, third, fourth] = payload;
      if (first !== status200 && ![second, third, fourth].includes(status200)) this.#fail("not a 200");
    } else if (type === types.settings && (flags & ack) === 0) {
      this.#socket.write(frame(types.settings, ack, 0, Buffer.alloc(0)));
    } else if (type === types.reset || type === types.goaway)
      this.#fail(`a frame of type ${type}: ${payload.toString("hex")}`);
    return 0;
  }

  #fail(why: string): void {
    const done = this.#done;
    this.#done = undefined;
    done?.(new Error(why));
    this.#socket.destroy();
  }

  close(): void {
    this.#done = undefined;
    this.#socket.destroy();
  }
}
