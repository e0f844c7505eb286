/**
 * The API at port 49983 of a sandbox for E2B's clients: health, files, processes and the file system. Every call needs the sandbox's token,
 * except signed URLs, whose signature is the credential.
 */
import type { IncomingMessage, ServerResponse } from "node:http";
import { callerIsKnown, heldAnswers } from "@cloche/base";
import { E2bError, notOffered, notRunning } from "../e2b-error.ts";
import { answerError, answerJson, headerOf, targetOf } from "../http.ts";
import { type OpenSandbox, type Sandboxes, untilAnswered } from "./sandboxes.ts";
import { answerCallError, call, isCall } from "./calls.ts";
import { readFile, writeFiles } from "./files.ts";
import { readSignature } from "./signed-url.ts";

export class Envd {
  readonly #sandboxes: Sandboxes;

  constructor(sandboxes: Sandboxes) {
    this.#sandboxes = sandboxes;
  }

  /** `sandboxId`: undefined if a signed URL must tell it. Answers every request, also with an error; returns the error for the log. */
  async answer(
    request: IncomingMessage,
    response: ServerResponse,
    sandboxId: string | undefined,
  ): Promise<E2bError | undefined> {
    let sandbox: OpenSandbox | undefined;
    try {
      const url = targetOf(request);
      sandbox = await this.#authorised(request, url, sandboxId);
      callerIsKnown(request);
      heldAnswers.watch(response, sandbox.teamId);
      this.#sandboxes.endWithKey(untilAnswered(response), sandbox.apiKey, sandbox.id);
      await this.#dispatch(request, response, url, sandbox);
      return undefined;
    } catch (thrown) {
      const error =
        sandbox === undefined ? E2bError.from(thrown) : await this.#sandboxes.explain(sandbox, thrown);
      return answerFailure(request, response, error);
    }
  }

  async #authorised(request: IncomingMessage, url: URL, sandboxId: string | undefined): Promise<OpenSandbox> {
    const token = headerOf(request, "x-access-token");
    if (token !== undefined && sandboxId !== undefined) {
      const apiKey = this.#sandboxes.keyIn(token, sandboxId);
      if (apiKey === undefined)
        throw new E2bError("unauthenticated", "header X-Access-Token is no token of this sandbox");
      await this.#sandboxes.requireKey(apiKey, sandboxId);
      return this.#sandboxes.open(sandboxId, apiKey);
    }
    if (url.pathname === "/files") {
      const operation = request.method === "POST" ? "write" : "read";
      const signer = await readSignature(this.#sandboxes, url.searchParams, operation, sandboxId);
      await this.#sandboxes.requireKey(signer.apiKey, signer.sandboxId);
      return this.#sandboxes.open(signer.sandboxId, signer.apiKey);
    }
    throw new E2bError(
      "unauthenticated",
      "header X-Access-Token is missing; it is the envdAccessToken of a create",
    );
  }

  async #dispatch(
    request: IncomingMessage,
    response: ServerResponse,
    url: URL,
    sandbox: OpenSandbox,
  ): Promise<void> {
    const { method } = request;
    if (method === "POST" && isCall(url.pathname))
      return call(url.pathname.slice(1), sandbox, request, response);
    switch (`${method === "HEAD" ? "GET" : method} ${url.pathname}`) {
      case "GET /health":
        return this.#health(response, sandbox);
      case "GET /files":
        return readFile(await this.#fileCall(request, response, url, sandbox));
      case "POST /files":
        return writeFiles(await this.#fileCall(request, response, url, sandbox));
      case "GET /envs":
      case "GET /metrics":
      case "POST /files/compose":
        throw notOffered(`${url.pathname} of envd`);
      default:
        throw new E2bError("not_found", `there is no route ${method} ${url.pathname}`);
    }
  }

  async #fileCall(request: IncomingMessage, response: ServerResponse, url: URL, sandbox: OpenSandbox) {
    const account = await sandbox.accounts.find(url.searchParams.get("username") ?? "");
    return { plane: sandbox.plane, account, query: url.searchParams, request, response };
  }

  async #health(response: ServerResponse, { id, isRunning }: OpenSandbox): Promise<void> {
    if (!(await isRunning())) throw notRunning(id);
    answerJson(response, 204);
  }
}

/** Answers an error; its status tells a sandbox that does not run. A stream that has begun is cut, so that clients check the health. */
function answerFailure(request: IncomingMessage, response: ServerResponse, error: E2bError): E2bError {
  if (!isCall(request.url ?? "") || error.status === 502) return answerError(response, error);
  answerCallError(request, response, error);
  return error;
}
