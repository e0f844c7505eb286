import { Duplex } from "node:stream";
import { expect, test } from "vitest";
import { AgentConnection } from "./agent-connection.ts";
import { PieceRate } from "@cloche/base";

/** A connection to an agent whose system calls are counted. */
class Counted extends Duplex {
  readonly writes: string[] = [];
  #free: (() => void) | undefined;
  isFull = false;

  override _read(): void {}

  override _write(chunk: Buffer, _encoding: BufferEncoding, done: () => void): void {
    this.#take(chunk.toString("latin1"), done);
  }

  override _writev(chunks: { chunk: Buffer }[], done: () => void): void {
    this.#take(chunks.map(({ chunk }) => chunk.toString("latin1")).join(""), done);
  }

  #take(text: string, done: () => void): void {
    this.writes.push(text);
    if (this.isFull) this.#free = done;
    else done();
  }

  empty(): void {
    this.isFull = false;
    this.#free?.();
  }
}

const connectionOver = (socket: Counted): AgentConnection =>
  new AgentConnection(socket, {
    connected: true,
    limits: { headBytes: 1_024, headLines: 100 },
    work: new PieceRate(1_000),
    onIdle: () => undefined,
  });

test("pieces that are written together go in one system call, in order, every byte as it is", () => {
  const socket = new Counted();
  const connection = connectionOver(socket);
  expect(connection.writeAll(["3\r\n", Buffer.from([0, 255, 10]), "\r\n"])).toBe(true);
  expect(socket.writes).toEqual(["3\r\n\u0000\u00ff\n\r\n"]);
});

test("a connection that takes no more says so, and loses nothing", async () => {
  const socket = new Counted({ writableHighWaterMark: 8 });
  const connection = connectionOver(socket);
  socket.isFull = true;
  expect(connection.writeAll([Buffer.from("first ")])).toBe(true);
  expect(connection.writeAll(["and ", Buffer.from("second")])).toBe(false);
  const drained = new Promise((resolve) => socket.once("drain", resolve));
  socket.empty();
  await drained;
  expect(socket.writes.join("")).toBe("first and second");
});
