import { Readable, Writable } from "node:stream";
import { Cloche } from "@cloche/sdk";
import { run } from "../program.ts";

export const sandboxId = "sbx-aaaaaaaaaaaaaaaaaaaa";
export const otherId = "sbx-bbbbbbbbbbbbbbbbbbbb";

export interface Asked {
  method: string;
  path: string;
  query: URLSearchParams;
  headers: Headers;
  body: Uint8Array<ArrayBuffer>;
  text: string;
  /** Aborts when the caller aborts the request or the body of its answer. */
  signal: AbortSignal | undefined;
}
type Answer = Response | object | Promise<Response | object>;

class Collected extends Writable {
  text = "";
  isTTY = false;
  columns = 0;
  readonly bytes: Buffer[] = [];
  override _write(chunk: Buffer, _encoding: BufferEncoding, done: () => void): void {
    this.text += chunk.toString();
    this.bytes.push(chunk);
    done();
  }
}

/** Gateway and data plane in memory; runs the CLI against them. */
export class FakeService {
  readonly asked: Asked[] = [];
  sandboxes: Array<Record<string, unknown>> = [this.sandbox(sandboxId, "demo")];
  /** Gateway methods by name, data plane routes as `GET /v1/files`. */
  readonly answers: Record<string, (asked: Asked) => Answer> = {};
  readonly abort = new AbortController();
  /** Whether standard error is a terminal, and its output so far. */
  isTerminal = false;
  /** Whether standard output is a terminal. */
  isOutputTerminal = false;
  env: NodeJS.ProcessEnv = {};
  shown = (): string => "";
  columns = 0;

  sandbox(id: string, name: string, more: object = {}): Record<string, unknown> {
    return {
      id,
      name,
      state: "SANDBOX_STATE_RUNNING",
      domain: `${id}.cloche.test`,
      created_at: "2026-01-01T00:00:00.000Z",
      cpus: 2,
      memory_mb: 1024,
      disk_mb: 8192,
      error_message: "",
      metadata: {},
      public_ports: [],
      ...more,
    };
  }

  /** JSON of the last request to a gateway method or a data plane route. */
  sent(name: string): Record<string, unknown> {
    const found = this.asked.findLast(
      ({ method, path }) => path.endsWith(`/${name}`) || `${method} ${path}` === name,
    );
    if (found === undefined) throw new Error(`${name} was not asked`);
    return JSON.parse(found.text || "{}") as Record<string, unknown>;
  }

  readonly #fetch = async (url: string, init: RequestInit): Promise<Response> => {
    const { pathname, searchParams, protocol } = new URL(url);
    const body = new Uint8Array(await new Response(init.body ?? null).arrayBuffer());
    const headers = new Headers(init.headers);
    const text = new TextDecoder().decode(body);
    const asked: Asked = {
      method: init.method ?? "",
      path: pathname,
      query: searchParams,
      headers,
      body,
      text,
      signal: init.signal ?? undefined,
    };
    this.asked.push(asked);
    const name = protocol === "https:" ? `${asked.method} ${pathname}` : (pathname.split("/").at(-1) ?? "");
    const answer = await (this.answers[name] ?? this.#default(name))(asked);
    return answer instanceof Response ? answer : Response.json(answer);
  };

  #default(name: string): (asked: Asked) => Answer {
    const one = ({ text }: Asked): object => {
      const { id } = JSON.parse(text) as { id?: string };
      const found = this.sandboxes.find((sandbox) => sandbox["id"] === id);
      return found === undefined ? failure(404, "not_found", "id: no such sandbox") : { sandbox: found };
    };
    const token = () => ({ jwt: "token", expires_at_unix: 9_999_999_999 });
    const defaults: Record<string, (asked: Asked) => Answer> = {
      ListSandboxes: () => ({ sandboxes: this.sandboxes, next_page_token: "" }),
      GetSandbox: one,
      SuspendSandbox: one,
      ResumeSandbox: one,
      UpdateSandbox: one,
      DeleteSandbox: () => ({}),
      IssueDataPlaneToken: token,
      CreateSandbox: () => ({
        sandbox: this.sandboxes[0],
        data_plane_token: "token",
        data_plane_token_expires_at_unix: 9_999_999_999,
      }),
      ForkSandbox: () => ({
        sandbox: this.sandbox(otherId, "fork"),
        sandboxes: [this.sandbox(otherId, "fork")],
        data_plane_tokens: [""],
        data_plane_token: "",
        data_plane_token_expires_at_unix: 0,
      }),
    };
    return defaults[name] ?? (() => failure(404, "not_found", `no route ${name}`));
  }

  /** Runs a command line. */
  async run(
    args: string[],
    stdin: string | Buffer | Readable = "",
  ): Promise<{ code: number; stdout: string; stderr: string; bytes: Buffer }> {
    const stdout = new Collected();
    const stderr = new Collected();
    stderr.isTTY = this.isTerminal;
    stdout.isTTY = this.isOutputTerminal;
    stderr.columns = this.columns;
    this.shown = () => stderr.text;
    const cloche = new Cloche({ gatewayUrl: "http://gateway.test", apiKey: "key", fetch: this.#fetch });
    const code = await run(args, {
      stdin: stdin instanceof Readable ? stdin : Readable.from([Buffer.from(stdin)]),
      stdout,
      stderr,
      env: this.env,
      signal: this.abort.signal,
      connect: () => Promise.resolve(Object.assign(cloche, { close: () => Promise.resolve() })),
    });
    return { code, stdout: stdout.text, stderr: stderr.text, bytes: Buffer.concat(stdout.bytes) };
  }
}

export const failure = (status: number, code: string, message: string): Response =>
  Response.json({ code, message }, { status, headers: { "x-request-id": "req-1" } });

export const events = (...all: Array<[string, object]>): Response =>
  new Response(all.map(([event, data]) => `event: ${event}\ndata: ${JSON.stringify(data)}\n\n`).join(""), {
    headers: { "content-type": "text/event-stream" },
  });
