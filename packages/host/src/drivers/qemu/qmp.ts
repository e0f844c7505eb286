/**
 * Client of QEMU's machine protocol (QMP): JSON lines over a unix socket. One connection, commands answered in order.
 *
 *   connecting ──greeting, qmp_capabilities──▶ ready ──socket closes──▶ closed (commands under way fail)
 *
 * A guest may have taken over its QEMU, so everything that QEMU sends is bounded and checked.
 */
import { closeSync, openSync, constants } from "node:fs";
import { connect, type Socket } from "node:net";
import { asBuffer, PieceRate } from "@cloche/base";
import { GatheredBytes } from "@cloche/protocol";

/** Bytes of the console in one answer. */
export const consoleReadBytes = 16_384;
/** The longest is such an answer, in which each byte may be escaped. More would be parsed in one turn of the event loop. */
const maxLineBytes = 8 * consoleReadBytes;
/** Lines, reads and KiB in a millisecond, for which the reading of one machine waits: a guest can cause events without end. */
const readPerMs = 10;
const pieceBytes = 1_024;
const newline = 10;
/** Characters of QEMU's reason for a refusal. */
const descriptionMax = 1_000;
const connectTimeoutMs = 5_000;
const commandTimeoutMs = 10_000;

/** The commands in use, with their arguments and results. */
export interface QmpCommands {
  stop: { in: undefined; out: unknown };
  cont: { in: undefined; out: unknown };
  quit: { in: undefined; out: unknown };
  "query-status": { in: undefined; out: { running: boolean; status: string } };
  "query-version": { in: undefined; out: { qemu: { major: number; minor: number; micro: number } } };
  "xen-save-devices-state": { in: { filename: string; live: boolean }; out: unknown };
  "blockdev-add": { in: object; out: unknown };
  "blockdev-reopen": { in: { options: object[] }; out: unknown };
  "blockdev-del": { in: { "node-name": string }; out: unknown };
  "query-block": { in: undefined; out: { qdev?: string; inserted?: { file?: string } }[] };
  "query-blockstats": { in: undefined; out: { qdev?: string; stats?: { failed_wr_operations?: number } }[] };
  "query-named-block-nodes": { in: { flat: boolean }; out: { "node-name"?: string }[] };
  block_resize: { in: { "node-name": string; size: number }; out: unknown };
  "ringbuf-read": { in: { device: string; size: number }; out: string };
}

export interface QmpEvent {
  readonly event: string;
  readonly data: Readonly<Record<string, unknown>>;
}

/** QEMU refused a command. Private wording: it may name host paths. */
export class QmpError extends Error {
  override readonly name = "QmpError";
  readonly command: string;

  constructor(command: string, description: string) {
    super(`${command}: ${description}`);
    this.command = command;
  }
}

/** QEMU did not answer in time: it hangs or is stopped. */
export class QmpTimeout extends Error {
  override readonly name = "QmpTimeout";
}

interface Pending {
  readonly command: string;
  readonly resolve: (value: unknown) => void;
  readonly reject: (error: Error) => void;
}

export class QmpClient {
  readonly #socket: Socket;
  readonly #pending = new Map<number, Pending>();
  readonly #listeners = new Set<(event: QmpEvent) => void>();
  readonly #closed = Promise.withResolvers<void>();
  readonly #greeting = Promise.withResolvers<void>();
  readonly #rest = new GatheredBytes();
  readonly #rate = new PieceRate(readPerMs);
  #nextId = 1;
  #isClosed = false;

  private constructor(socket: Socket) {
    this.#socket = socket;
    socket.on("data", (bytes: Buffer) => this.#take(bytes));
    socket.on("error", () => undefined); // "close" follows.
    socket.on("close", () => this.#lost());
    this.#greeting.promise.catch(() => undefined);
  }

  /** Connects to `socketName` in `directory`, whose path may be too long for a socket. Resolves when ready for commands. */
  static async connect(directory: string, socketName: string): Promise<QmpClient> {
    const descriptor = openSync(directory, constants.O_RDONLY | constants.O_DIRECTORY);
    try {
      const client = new QmpClient(connect(`/proc/self/fd/${descriptor}/${socketName}`));
      try {
        await within(client.#greeting.promise, connectTimeoutMs, "QEMU's greeting");
        await client.#send("qmp_capabilities", undefined, connectTimeoutMs);
      } catch (error) {
        client.close();
        throw error;
      }
      return client;
    } finally {
      closeSync(descriptor);
    }
  }

  /** Resolves when the connection is gone: QEMU ended, or `close` was called. */
  get closed(): Promise<void> {
    return this.#closed.promise;
  }

  execute<C extends keyof QmpCommands>(
    command: C,
    ...rest: QmpCommands[C]["in"] extends undefined
      ? [timeoutMs?: number]
      : [QmpCommands[C]["in"], timeoutMs?: number]
  ): Promise<QmpCommands[C]["out"]> {
    const [input, timeoutMs] = typeof rest[0] === "object" ? [rest[0], rest[1]] : [undefined, rest[0]];
    return this.#send(command, input, (timeoutMs as number | undefined) ?? commandTimeoutMs);
  }

  onEvent(listener: (event: QmpEvent) => void): void {
    this.#listeners.add(listener);
  }

  close(): void {
    this.#socket.destroy();
  }

  #send(command: string, input: object | undefined, timeoutMs: number): Promise<never> {
    if (this.#isClosed) return Promise.reject(new QmpError(command, "QEMU has ended"));
    const id = this.#nextId++;
    const answered = new Promise<unknown>((resolve, reject) => {
      this.#pending.set(id, { command, resolve, reject });
      this.#socket.write(`${JSON.stringify({ execute: command, ...(input && { arguments: input }), id })}\n`);
    });
    return within(answered, timeoutMs, `QEMU's answer to ${command}`) as Promise<never>;
  }

  #take(bytes: Buffer): void {
    let lines = 0;
    let from = 0;
    for (let end = bytes.indexOf(newline); end >= 0; end = bytes.indexOf(newline, from)) {
      this.#rest.push(bytes.subarray(from, end));
      if (this.#rest.length > maxLineBytes) return this.close();
      from = end + 1;
      lines += 1;
      if (!this.#line(asBuffer(this.#rest.take()).toString("utf8"))) return this.close();
    }
    this.#rest.push(bytes.subarray(from));
    if (this.#rest.length > maxLineBytes) return this.close();
    this.#rate.spend(1 + lines + bytes.length / pieceBytes);
    if (!this.#rate.mayBegin(() => this.#socket.resume())) this.#socket.pause();
  }

  /** False: not QMP, so nothing that follows can be trusted. */
  #line(text: string): boolean {
    if (text.trim() === "") return true;
    try {
      this.#message(JSON.parse(text) as Record<string, unknown>);
      return true;
    } catch {
      return false;
    }
  }

  #message(message: Record<string, unknown>): void {
    if ("QMP" in message) return this.#greeting.resolve();
    if (typeof message["event"] === "string") {
      const event = { event: message["event"], data: (message["data"] ?? {}) as Record<string, unknown> };
      for (const listener of this.#listeners) listener(event);
      return;
    }
    const pending = this.#pending.get(message["id"] as number);
    if (!pending) return;
    this.#pending.delete(message["id"] as number);
    const error = message["error"] as { desc?: string } | undefined;
    if (error) pending.reject(new QmpError(pending.command, String(error.desc).slice(0, descriptionMax)));
    else pending.resolve(message["return"]);
  }

  #lost(): void {
    this.#isClosed = true;
    const error = new QmpError("connection", "QEMU has ended");
    this.#greeting.reject(error);
    for (const pending of this.#pending.values()) pending.reject(error);
    this.#pending.clear();
    this.#closed.resolve();
  }
}

async function within<T>(promise: Promise<T>, timeoutMs: number, what: string): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(
      () => reject(new QmpTimeout(`${what} did not come within ${timeoutMs} ms`)),
      timeoutMs,
    );
    timer.unref();
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}
