import type { ServerResponse } from "node:http";
import { StringDecoder } from "node:string_decoder";
import { drained } from "../http/drained.ts";
import type { Output } from "./bytes.ts";
import type { OutputStream } from "../spawner/index.ts";

const keepAliveMs = 15_000;

/**
 * The streaming form of exec: server-sent events `stdout` and `stderr` with `{"data": "…"}` (text, or base64 if the event has
 * `output_encoding`), at the end one `exit`, or one `error` with the usual body. The head is sent with the first event, so that a wrong
 * request still gets its 4xx.
 */
export class EventStream {
  readonly #response: ServerResponse;
  readonly #decoders = { stdout: new StringDecoder("utf8"), stderr: new StringDecoder("utf8") };
  readonly #inBase64: boolean;
  #keepAlive: NodeJS.Timeout | undefined;
  #draining: Promise<void> | undefined;

  constructor(response: ServerResponse, output: Output) {
    this.#response = response;
    this.#inBase64 = output === "base64";
  }

  get begun(): boolean {
    return this.#response.headersSent;
  }

  /** Sends the head. */
  begin(): void {
    if (this.begun || this.#response.destroyed) return;
    this.#response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-store" });
    this.#response.flushHeaders();
    this.#keepAlive = setInterval(() => this.#response.write(": still running\n\n"), keepAliveMs);
    this.#response.once("close", () => clearInterval(this.#keepAlive));
  }

  /** Sends output at once. The promise resolves when the client has room for more, or is gone (then output is dropped). */
  output(stream: OutputStream, chunk: Buffer): void | Promise<void> {
    if (this.#inBase64) {
      return this.#send(stream, { data: chunk.toString("base64"), output_encoding: "base64" });
    }
    const text = this.#decoders[stream].write(chunk);
    if (text !== "") return this.#send(stream, { data: text });
  }

  /** The last event: `exit` or `error`. */
  end(event: "exit" | "error", body: unknown): void {
    for (const stream of ["stdout", "stderr"] as const) {
      const text = this.#decoders[stream].end(); // an incomplete character at the end
      if (text !== "") void this.#send(stream, { data: text });
    }
    void this.#send(event, body);
    clearInterval(this.#keepAlive);
    this.#response.end();
  }

  #send(event: string, body: unknown): void | Promise<void> {
    this.begin();
    const response = this.#response;
    if (response.destroyed) return;
    if (response.write(`event: ${event}\ndata: ${JSON.stringify(body)}\n\n`)) return;
    this.#draining ??= drained(response).then(() => {
      this.#draining = undefined;
    });
    return this.#draining;
  }
}
