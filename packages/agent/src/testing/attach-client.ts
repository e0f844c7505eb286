/** A client of attach for tests. It speaks WebSocket by hand over any connection, so that it can also break the protocol. */
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { connect } from "node:net";
import type { Duplex } from "node:stream";
import { frameHead, opcodes } from "../web-socket/frames.ts";

export interface AttachRequest {
  path: string;
  host?: string;
  headers?: Record<string, string>;
  subprotocols?: string[];
  /** Factor for its waits. */
  patience?: number;
}

export class AttachClient {
  readonly socket: Duplex;
  /** The head of the answer. */
  readonly head: string;
  /** The server's close frame; undefined: the connection ended without one. */
  readonly closed: Promise<{ code: number; reason: string } | undefined>;
  readonly #patience: number;
  readonly #received: Buffer[][] = [];
  #rest: Buffer;
  #close: { code: number; reason: string } | undefined;
  #changed = Promise.withResolvers<void>();

  private constructor(socket: Duplex, head: string, rest: Buffer, patience: number) {
    this.socket = socket;
    this.#patience = patience;
    this.head = head;
    this.#rest = rest;
    const closed = Promise.withResolvers<{ code: number; reason: string } | undefined>();
    this.closed = closed.promise;
    socket.on("data", (chunk: Buffer) => this.#take(chunk));
    socket.on("error", () => undefined);
    socket.on("end", () => socket.end());
    socket.on("close", () => {
      closed.resolve(this.#close);
      this.#changed.resolve();
    });
    this.#take(Buffer.alloc(0));
  }

  /** Attaches over a connection to the server. Resolves when the server has answered: see `head`. */
  static async over(
    socket: Duplex,
    { path, host = "sandbox", headers = {}, subprotocols, patience = 1 }: AttachRequest,
  ): Promise<AttachClient> {
    const protocols = subprotocols ?? ["v5.channel.k8s.io"];
    const lines = {
      host,
      connection: "Upgrade",
      upgrade: "websocket",
      "sec-websocket-version": "13",
      "sec-websocket-key": randomBytes(16).toString("base64"),
      ...(protocols.length > 0 ? { "sec-websocket-protocol": protocols.join(", ") } : {}),
      ...headers,
    };
    const text = Object.entries(lines).map(([name, value]) => `${name}: ${value}\r\n`);
    socket.write(`GET ${path} HTTP/1.1\r\n${text.join("")}\r\n`);
    let received = Buffer.alloc(0);
    while (!received.includes("\r\n\r\n")) {
      const [chunk] = (await once(socket, "data")) as [Buffer];
      received = Buffer.concat([received, chunk]);
    }
    socket.pause();
    const end = received.indexOf("\r\n\r\n") + 4;
    const client = new AttachClient(
      socket,
      received.subarray(0, end).toString(),
      received.subarray(end),
      patience,
    );
    socket.resume();
    return client;
  }

  /** Over plain TCP to the loopback. */
  static async to(port: number, request: AttachRequest): Promise<AttachClient> {
    const socket = connect({ host: "127.0.0.1", port, allowHalfOpen: true });
    await once(socket, "connect");
    return AttachClient.over(socket, request);
  }

  /** Bytes received on a channel so far. */
  bytes(channel: number): Buffer {
    return Buffer.concat(this.#received[channel] ?? []);
  }

  text(channel: number): string {
    return this.bytes(channel).toString("utf8");
  }

  /** The messages of the status channel. */
  get status(): Record<string, unknown>[] {
    return (this.#received[3] ?? []).map((one) => JSON.parse(one.toString()) as Record<string, unknown>);
  }

  /** Waits until `check` is true. */
  async until(what: string, check: () => boolean, withinMs = 15_000): Promise<void> {
    const deadline = Date.now() + withinMs * this.#patience;
    while (!check()) {
      const left = deadline - Date.now();
      if (left <= 0 || this.socket.destroyed) {
        throw new Error(`never came: ${what}; got ${JSON.stringify(this.text(1).slice(-2_000))}`);
      }
      const timer = setTimeout(() => this.#changed.resolve(), left);
      await this.#changed.promise;
      clearTimeout(timer);
    }
  }

  send(channel: number, data: string | Buffer): boolean {
    return this.frame(opcodes.binary, Buffer.concat([Buffer.from([channel]), Buffer.from(data)]));
  }

  /** Sends any frame. */
  frame(opcode: number, payload: Buffer, fin = true): boolean {
    const head = frameHead(opcode, payload.length);
    head[0] = (fin ? 0x80 : 0) | opcode;
    head[1] = (head[1] as number) | 0x80;
    const mask = randomBytes(4);
    const masked = Buffer.from(payload);
    for (let at = 0; at < masked.length; at += 1)
      masked[at] = (masked[at] as number) ^ (mask[at & 3] as number);
    return this.socket.write(Buffer.concat([head, mask, masked]));
  }

  resize(cols: number, rows: number): void {
    this.send(4, JSON.stringify({ Width: cols, Height: rows }));
  }

  /** Cuts the connection, as a network does. */
  cut(): void {
    this.socket.destroy();
  }

  #take(chunk: Buffer): void {
    this.#rest = this.#rest.length === 0 ? chunk : Buffer.concat([this.#rest, chunk]);
    for (;;) {
      const data = this.#rest;
      if (data.length < 2) break;
      const short = (data[1] as number) & 0x7f;
      const extended = short === 126 ? 2 : short === 127 ? 8 : 0;
      if (data.length < 2 + extended) break;
      const length =
        extended === 0 ? short : extended === 2 ? data.readUInt16BE(2) : Number(data.readBigUInt64BE(2));
      const end = 2 + extended + length;
      if (data.length < end) break;
      this.#rest = data.subarray(end);
      this.#onFrame((data[0] as number) & 0x0f, data.subarray(2 + extended, end));
    }
    const changed = this.#changed;
    this.#changed = Promise.withResolvers();
    changed.resolve();
  }

  #onFrame(opcode: number, payload: Buffer): void {
    if (opcode === opcodes.binary) {
      const channel = payload[0] as number;
      (this.#received[channel] ??= []).push(payload.subarray(1));
    } else if (opcode === opcodes.close) {
      this.#close = { code: payload.readUInt16BE(0), reason: payload.subarray(2).toString() };
      this.frame(opcodes.close, payload.subarray(0, 2));
      this.socket.end();
    } else if (opcode === opcodes.pong) {
      (this.#received[opcodes.pong] ??= []).push(payload);
    }
  }
}
