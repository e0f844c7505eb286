import type {
  OkResponse,
  ProcessInfo,
  ProcessList,
  ProcessRequest,
  ProcessStdinResponse,
} from "@cloche/protocol";
import type { Attachment, AttachEvent, AttachOptions } from "./attachment.ts";
import { bodyOf, type DataPlane, type DataPlaneRequest } from "./data-plane.ts";
import { fromBase64 } from "./base64.ts";
import { ClocheApiError, ClocheConnectionError } from "./errors.ts";
import { readEvents } from "./late-events.ts";
import { type CallOptions, sleep } from "./transport.ts";

/** Fields of a process to start. */
export type ProcessOptions = Omit<ProcessRequest, "cmd"> & CallOptions;
/** Options of a terminal; defaults: `cols` 80, `rows` 24. */
export type TerminalOptions = Omit<ProcessOptions, "tty" | "stdin" | "merge_output"> & {
  cols?: number;
  rows?: number;
};
/** A signal by name or number. */
export type Signal = string | number;

const defaultCells = { cols: 80, rows: 24 };
/** Longest wait of one call; longer waits repeat it. */
const waitSecs = 60;
const retryForMs = 60_000;

/** Processes that outlive the request that started them. */
export class Processes {
  readonly #dataPlane: DataPlane;

  constructor(dataPlane: DataPlane) {
    this.#dataPlane = dataPlane;
  }

  /**
   * Starts a program and answers at once. There is no shell: `cmd` is a program and its arguments. The process does not depend on this
   * client. A missing program is an ended process with exit code 127.
   */
  async start(cmd: readonly string[], options: ProcessOptions = {}): Promise<SandboxProcess> {
    const { signal, ...fields } = options;
    const json = { cmd, ...fields };
    return this.#of(await this.#dataPlane.json<ProcessInfo>("POST", "/v1/processes", { json, signal }));
  }

  /** Starts a program on a new terminal; default: a login shell of bash. */
  terminal(cmd: readonly string[] = ["bash", "-l"], options: TerminalOptions = {}): Promise<SandboxProcess> {
    const { cols = defaultCells.cols, rows = defaultCells.rows, ...rest } = options;
    return this.start(cmd, { ...rest, tty: { cols, rows } });
  }

  /** Processes of this route, running execs, services and containers, oldest first. */
  async list(options: CallOptions & { status?: "running" | "exited" } = {}): Promise<ProcessInfo[]> {
    const { signal, ...query } = options;
    return (await this.#dataPlane.json<ProcessList>("GET", "/v1/processes", { query, signal })).processes;
  }

  /** `not_found` if there is no such process, or it ended longer ago than its `keep_seconds`. */
  async get(processId: string, options: CallOptions = {}): Promise<SandboxProcess> {
    return this.#of(await this.#dataPlane.json<ProcessInfo>("GET", pathOf(processId), options));
  }

  #of(info: ProcessInfo): SandboxProcess {
    return new SandboxProcess(this.#dataPlane, info);
  }
}

/** One process of a sandbox. `for await (const event of process)` yields all its output and then its end. */
export class SandboxProcess implements AsyncIterable<AttachEvent, void> {
  readonly #dataPlane: DataPlane;
  #info: ProcessInfo;

  constructor(dataPlane: DataPlane, info: ProcessInfo) {
    this.#dataPlane = dataPlane;
    this.#info = info;
  }

  /** `proc-` and 20 characters. */
  get id(): string {
    return this.#info.process_id;
  }
  /** The last known record; `refresh` reads it again. */
  get info(): ProcessInfo {
    return this.#info;
  }

  /** Reads the record from the sandbox. `not_found` once the process is no longer kept. */
  refresh(options: CallOptions = {}): Promise<ProcessInfo> {
    return this.#call("GET", "", options);
  }

  /** Waits until the process has ended. `deadline_exceeded` (408) after `timeout_secs`; without it, waits for ever. */
  async wait(options: CallOptions & { timeout_secs?: number } = {}): Promise<ProcessInfo> {
    const { timeout_secs = Number.POSITIVE_INFINITY, signal } = options;
    const endMs = Date.now() + timeout_secs * 1_000;
    for (;;) {
      const leftSecs = Math.max(0, (endMs - Date.now()) / 1_000);
      const json = { timeout_secs: Math.ceil(Math.min(waitSecs, leftSecs)) };
      const request = { json, signal, repeatable: true };
      try {
        return await this.#call("POST", "/wait", request);
      } catch (error) {
        const isTime = error instanceof ClocheApiError && error.status === 408;
        if (!isTime || Date.now() >= endMs) throw error;
      }
    }
  }

  /** Sends a signal to its process group; on a terminal to the foreground group. 409 once the process has ended. */
  signal(signal: Signal, options: CallOptions = {}): Promise<ProcessInfo> {
    return this.#call("POST", "/signal", { json: { signal }, ...options });
  }

  /** Sets the size of its terminal, in characters, 1 to 65,535 each. `failed_precondition` if it has no terminal or has ended. */
  resize(size: { cols: number; rows: number }, options: CallOptions = {}): Promise<ProcessInfo> {
    return this.#call("POST", "/resize", { json: size, ...options });
  }

  /** Writes to standard input at the pace of the process; answers the number of bytes it took. */
  async write(
    data: string | Uint8Array<ArrayBuffer> | ReadableStream<Uint8Array>,
    options: CallOptions = {},
  ): Promise<number> {
    const request = { body: data, headers: { "content-type": "application/octet-stream" }, ...options };
    const answer = this.#dataPlane.json<ProcessStdinResponse>("POST", `${pathOf(this.id)}/stdin`, request);
    return (await answer).bytes;
  }

  /** Sends end of file on its standard input. `failed_precondition` if that is closed or was never open, or the process has ended. */
  endInput(options: CallOptions = {}): Promise<OkResponse> {
    return this.#dataPlane.json("DELETE", `${pathOf(this.id)}/stdin`, options);
  }

  /** The kept bytes of one stream; default standard output, which also has terminal and merged output. */
  async output(
    options: CallOptions & { stream?: "stdout" | "stderr"; after?: number } = {},
  ): Promise<Uint8Array<ArrayBuffer>> {
    const { signal, ...query } = options;
    const response = await this.#dataPlane.request("GET", `${pathOf(this.id)}/output`, { query, signal });
    return new Uint8Array(await response.arrayBuffer());
  }

  /**
   * Output from the given offsets on (default: all kept output), while it is written, and at the end `exit`. A lost connection is made
   * again from the last offset, for up to a minute, which wakes a sandbox with `auto_resume`; with `reconnect: false` the loop throws
   * ClocheConnectionError. Leaving the loop does not affect the process.
   */
  async *events(
    options: CallOptions & { after_stdout?: number; after_stderr?: number; reconnect?: boolean } = {},
  ): AsyncGenerator<AttachEvent, void> {
    const { signal, after_stdout = 0, after_stderr = 0, reconnect = true } = options;
    const offsets = { stdout: after_stdout, stderr: after_stderr };
    let lostMs: number | undefined;
    for (;;) {
      try {
        for await (const event of this.#eventsFrom(offsets, signal)) {
          lostMs = undefined;
          if ("data" in event) offsets[event.type] = event.offset + event.data.length;
          else if (event.type === "gap") offsets[event.stream] = event.to;
          else this.#info = event.process;
          yield event;
          if (event.type === "exit") return;
        }
      } catch (error) {
        signal?.throwIfAborted();
        if (error instanceof ClocheApiError && error.code !== "unavailable") throw error;
        lostMs ??= Date.now();
        if (!reconnect || Date.now() - lostMs > retryForMs) throw lost(error);
      }
      if (!reconnect) throw lost(undefined);
      lostMs ??= Date.now();
      await sleep(200, signal);
    }
  }

  [Symbol.asyncIterator](): AsyncGenerator<AttachEvent, void> {
    return this.events();
  }

  /** Input and output over one connection, for terminals. */
  async attach(options: AttachOptions = {}): Promise<Attachment> {
    const { Attachment } = await import("./attachment.ts");
    return Attachment.open(this.#dataPlane, `${pathOf(this.id)}/attach`, options);
  }

  /** Ends the whole tree and removes the process from the list; answers its last record. */
  delete(options: CallOptions = {}): Promise<ProcessInfo> {
    return this.#call("DELETE", "", { ...options, repeatable: false });
  }

  /** `await using process = …` deletes it. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.delete().catch((error: unknown) => {
      if (!(error instanceof ClocheApiError && error.code === "not_found")) throw error;
    });
  }

  async *#eventsFrom(
    offsets: { stdout: number; stderr: number },
    signal: AbortSignal | undefined,
  ): AsyncGenerator<AttachEvent, void> {
    const response = await this.#dataPlane.request("GET", `${pathOf(this.id)}/output`, {
      query: { follow: true, after_stdout: offsets.stdout, after_stderr: offsets.stderr },
      headers: { accept: "text/event-stream" },
      signal,
    });
    for await (const { event, data } of readEvents(bodyOf(response))) {
      const body = JSON.parse(data) as Record<string, unknown>;
      if (event === "stdout" || event === "stderr")
        yield { type: event, offset: Number(body.offset), data: fromBase64(String(body.data)) };
      else if (event === "gap")
        yield { type: "gap", ...(body as Omit<Extract<AttachEvent, { type: "gap" }>, "type">) };
      else if (event === "exit") yield { type: "exit", process: body as unknown as ProcessInfo };
    }
  }

  /** A call whose answer is the process's record. */
  async #call(method: string, route: string, request: DataPlaneRequest): Promise<ProcessInfo> {
    this.#info = await this.#dataPlane.json(method, pathOf(this.id) + route, request);
    return this.#info;
  }
}

const pathOf = (processId: string): string => `/v1/processes/${encodeURIComponent(processId)}`;
const lost = (cause: unknown): ClocheConnectionError =>
  new ClocheConnectionError("the connection that followed the process ended; it may go on", { cause });
