import type { ProcessInfo } from "@cloche/protocol";
import { closeChannel, sendOn, subprotocol, writeOn } from "./channel-socket.ts";
import type { DataPlane } from "./data-plane.ts";
import { ClocheApiError, ClocheConnectionError } from "./errors.ts";
import { type CallOptions, sleep } from "./transport.ts";
import { opened, type WebSocketLike } from "./web-socket.ts";

const channels = { stdin: 0, stdout: 1, stderr: 2, status: 3, resize: 4 } as const;
const done = 1000;
const refused = 1008;
/** With more unread bytes than this the connection is closed, and made again from the reader's offset. */
const unreadBytes = 8_388_608;
const retryForMs = 60_000;
const retryFirstMs = 100;
const retryMostMs = 2_000;

/** The events of an attachment: output with its offset, gaps (bytes that are no longer kept), at the end the process's record. */
export type AttachEvent =
  | { type: "stdout" | "stderr"; offset: number; data: Uint8Array<ArrayBuffer> }
  | { type: "gap"; stream: "stdout" | "stderr"; from: number; to: number }
  | { type: "exit"; process: ProcessInfo };

/** Options of `SandboxProcess.attach`. */
export interface AttachOptions extends CallOptions {
  /** Offset in standard output to begin at; default 0: all output that is kept. */
  after_stdout?: number;
  /** As `after_stdout`, for standard error. */
  after_stderr?: number;
  /** Called when the connection was lost and when it is back. Without it the connection is also made again, for up to a minute. */
  onConnection?: (state: "lost" | "restored") => void;
}

/**
 * Input and output of a running process over one WebSocket. A lost connection is made again from the received offsets, so output is
 * neither lost nor repeated; input under way at that moment may be lost. Leaving the loop detaches; the process goes on.
 */
export class Attachment implements AsyncIterable<AttachEvent, void> {
  readonly #dataPlane: DataPlane;
  readonly #path: string;
  readonly #options: AttachOptions;
  readonly #offsets: { stdout: number; stderr: number };
  #socket: WebSocketLike | undefined;
  #events: AttachEvent[] = [];
  #unread = 0;
  #ended: { code: number; reason: string } | undefined;
  #wake: (() => void) | undefined;
  #closed = false;

  private constructor(dataPlane: DataPlane, path: string, options: AttachOptions) {
    this.#dataPlane = dataPlane;
    this.#path = path;
    this.#options = options;
    this.#offsets = { stdout: options.after_stdout ?? 0, stderr: options.after_stderr ?? 0 };
  }

  /** Used by `SandboxProcess.attach`. */
  static async open(dataPlane: DataPlane, path: string, options: AttachOptions): Promise<Attachment> {
    const attachment = new Attachment(dataPlane, path, options);
    await attachment.#connect();
    return attachment;
  }

  /** Resolves when there is room for more: a process that does not read makes its writer wait. */
  async write(data: string | Uint8Array): Promise<void> {
    const bytes = typeof data === "string" ? new TextEncoder().encode(data) : data;
    // While the connection is lost nothing is sent; the reading loop makes it again.
    await writeOn(() => this.#socket, channels.stdin, bytes, this.#options.signal);
  }

  /** Sends end of file on standard input, or the end-of-file character to a terminal. */
  endInput(): void {
    sendOn(this.#socket, closeChannel, Uint8Array.of(channels.stdin));
  }

  /** Sets the size of the terminal, in characters, 1 to 65,535 each. */
  resize(size: { cols: number; rows: number }): void {
    const cells = JSON.stringify({ Width: size.cols, Height: size.rows });
    sendOn(this.#socket, channels.resize, new TextEncoder().encode(cells));
  }

  /** Detaches; the process goes on. */
  close(): void {
    this.#closed = true;
    this.#socket?.close(done);
    this.#wake?.();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<AttachEvent, void> {
    try {
      while (!this.#closed) {
        this.#options.signal?.throwIfAborted();
        const event = this.#events.shift();
        if (event !== undefined) {
          if ("data" in event) {
            this.#unread -= event.data.length;
            this.#offsets[event.type] = event.offset + event.data.length;
          } else if (event.type === "gap") this.#offsets[event.stream] = event.to;
          yield event;
          if (event.type === "exit") return;
        } else if (this.#ended !== undefined) await this.#again(this.#ended);
        else await this.#something();
      }
    } finally {
      this.close();
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }

  async #connect(): Promise<void> {
    const { signal } = this.#options;
    const query = { after_stdout: this.#offsets.stdout, after_stderr: this.#offsets.stderr };
    const socket = await this.#dataPlane.socket(this.#path, [subprotocol], { query, signal });
    const at = { ...this.#offsets };
    this.#events = [];
    this.#unread = 0;
    this.#ended = undefined;
    socket.addEventListener("message", ({ data }) => {
      if (socket === this.#socket) this.#receive(new Uint8Array(data as ArrayBuffer), at);
    });
    socket.addEventListener("close", ({ code, reason }) => {
      if (socket !== this.#socket) return;
      this.#ended = { code, reason };
      this.#wake?.();
    });
    this.#socket = socket;
    await opened(socket, { signal });
  }

  #receive(message: Uint8Array<ArrayBuffer>, at: { stdout: number; stderr: number }): void {
    const data = message.subarray(1);
    if (message[0] === channels.stdout || message[0] === channels.stderr) {
      const type = message[0] === channels.stdout ? "stdout" : "stderr";
      this.#events.push({ type, offset: at[type], data });
      at[type] += data.length;
      this.#unread += data.length;
      if (this.#unread > unreadBytes) this.#socket?.close(done);
    } else if (message[0] === channels.status) {
      const message = JSON.parse(new TextDecoder().decode(data)) as ProcessInfo | { gap: Gap };
      if ("gap" in message) {
        at[message.gap.stream] = message.gap.to;
        this.#events.push({ type: "gap", ...message.gap });
      } else this.#events.push({ type: "exit", process: message });
    }
    this.#wake?.();
  }

  /** Makes the connection again after all received events without an exit: it was lost, or closed because of unread output. */
  async #again({ code, reason }: { code: number; reason: string }): Promise<void> {
    const { signal, onConnection } = this.#options;
    if (code === refused) throw new ClocheConnectionError(`the process refused: ${reason}`);
    onConnection?.("lost");
    const endMs = Date.now() + retryForMs;
    for (let waitMs = retryFirstMs; !this.#closed; waitMs = Math.min(waitMs * 2, retryMostMs)) {
      try {
        await this.#connect();
        onConnection?.("restored");
        return;
      } catch (error) {
        signal?.throwIfAborted();
        // A process that is gone does not come back.
        if (error instanceof ClocheApiError && error.code === "not_found") throw error;
        if (Date.now() + waitMs > endMs) throw error;
        await sleep(waitMs, signal);
      }
    }
  }

  #something(): Promise<void> {
    const { signal } = this.#options;
    return new Promise((resolve) => {
      const wake = (): void => {
        signal?.removeEventListener("abort", wake);
        this.#wake = undefined;
        resolve();
      };
      signal?.addEventListener("abort", wake, { once: true });
      this.#wake = wake;
    });
  }
}

interface Gap {
  stream: "stdout" | "stderr";
  from: number;
  to: number;
}
