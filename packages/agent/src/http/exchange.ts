import type { IncomingMessage, ServerResponse } from "node:http";
import { checkDataPlaneFields, limits } from "@cloche/protocol";
import { decodeUtf8, parseJsonObject, readBody, readBodyPieces } from "./body.ts";
import type { JsonObject } from "./fields.ts";
import { Query } from "./query.ts";

/** An answer that is JSON text already (values of the store). */
export class JsonText {
  readonly text: string;
  constructor(text: string) {
    this.text = text;
  }
}

/** One request and its answer, for handlers. */
export class Exchange {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly requestId: string;
  /** As sent: not decoded, not normalised, without the query. */
  readonly path: string;
  params: Record<string, string> = {};
  readonly #rawQuery: string;
  #query: Query | undefined;
  #gone: AbortController | undefined;
  #expectsContinue: boolean;

  constructor(
    request: IncomingMessage,
    response: ServerResponse,
    requestId: string,
    target: { path: string; query: string },
    expectsContinue: boolean,
  ) {
    this.request = request;
    this.response = response;
    this.requestId = requestId;
    this.path = target.path;
    this.#rawQuery = target.query;
    this.#expectsContinue = expectsContinue;
  }

  get query(): Query {
    this.#query ??= new Query(this.#rawQuery);
    return this.#query;
  }

  /** Aborts when the client closes the connection before the answer is complete. */
  get gone(): AbortSignal {
    if (this.#gone === undefined) {
      const controller = new AbortController();
      this.#gone = controller;
      if (this.response.destroyed) controller.abort();
      this.response.once("close", () => {
        if (!this.response.writableFinished) controller.abort();
      });
    }
    return this.#gone.signal;
  }

  /** The body as a stream. `100 Continue` is sent only now, after auth and limits. */
  openBody(): IncomingMessage {
    if (this.#expectsContinue) {
      this.#expectsContinue = false;
      this.response.writeContinue();
    }
    return this.request;
  }

  /** True while the client waits for `100 Continue`: its body will not come, so the connection must be closed. */
  get awaitsContinue(): boolean {
    return this.#expectsContinue;
  }

  /** The whole body; more than `maxBytes` is 413. */
  readBody(maxBytes: number): Promise<Buffer> {
    this.#openBodyUpTo(maxBytes);
    return readBody(this.request, maxBytes);
  }

  /** The whole body, in pieces as received. */
  readBodyPieces(maxBytes: number): Promise<Buffer[]> {
    this.#openBodyUpTo(maxBytes);
    return readBodyPieces(this.request, maxBytes);
  }

  #openBodyUpTo(maxBytes: number): void {
    if (Number(this.request.headers["content-length"] ?? 0) <= maxBytes) this.openBody();
  }

  async readText(maxBytes: number = limits.jsonBodyBytes): Promise<string> {
    return decodeUtf8(await this.readBody(maxBytes));
  }

  /** The JSON object in the body; an empty body is `{}`. Unknown fields are refused (`known-fields.ts`). */
  async readJson(maxBytes: number = limits.jsonBodyBytes): Promise<JsonObject> {
    const body = parseJsonObject(await this.readText(maxBytes));
    const { method, headers } = this.request;
    checkDataPlaneFields({ method, url: this.path, headers }, body);
    return body;
  }

  sendJson(status: number, body: unknown): void {
    if (this.response.headersSent || this.response.destroyed) return;
    const text = body instanceof JsonText ? body.text : JSON.stringify(body);
    this.response.writeHead(status, {
      "content-type": "application/json",
      "content-length": Buffer.byteLength(text),
    });
    this.response.end(text);
  }
}
