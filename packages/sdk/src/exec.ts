import type { ErrorBody, ExecRequest, ExecResponse } from "@cloche/protocol";
import { bodyOf, type DataPlane } from "./data-plane.ts";
import { ClocheApiError, ClocheConnectionError } from "./errors.ts";
import { readEvents } from "./event-stream.ts";
import type { CallOptions, FetchResponse } from "./transport.ts";

/** Options of a command; fields and meanings are those of the contract (service-interface.md, Data plane: exec). */
export type ExecOptions = Omit<ExecRequest, "cmd"> & CallOptions;

/** What `execStream` yields: output as it comes, at the end how the command ended. */
export type ExecEvent =
  | { type: "stdout" | "stderr"; data: string }
  | {
      type: "exit";
      exit_code: number;
      ok: boolean;
      duration_ms: number;
      timed_out: boolean;
      /** One of its processes was killed because the sandbox's memory was used up. */
      out_of_memory?: boolean;
    };

function bodyOfExec(cmd: readonly string[], options: ExecOptions): ExecRequest {
  const { signal: _signal, ...fields } = options;
  return { cmd: [...cmd], ...fields };
}

/** Never repeated after a lost connection: the command may have run. */
export function exec(
  dataPlane: DataPlane,
  cmd: readonly string[],
  options: ExecOptions,
): Promise<ExecResponse> {
  return dataPlane.json("POST", "/v1/exec", { json: bodyOfExec(cmd, options), signal: options.signal });
}

export async function* execStream(
  dataPlane: DataPlane,
  cmd: readonly string[],
  options: ExecOptions,
): AsyncGenerator<ExecEvent, void> {
  const response = await dataPlane.request("POST", "/v1/exec", {
    json: bodyOfExec(cmd, options),
    headers: { accept: "text/event-stream" },
    signal: options.signal,
  });
  const events = readEvents(bodyOf(response));
  try {
    for await (const { event, data } of events) {
      const body = JSON.parse(data) as Record<string, unknown>;
      if (event === "stdout" || event === "stderr") yield { type: event, data: String(body.data) };
      else if (event === "exit") {
        yield { type: "exit", ...(body as Omit<Extract<ExecEvent, { type: "exit" }>, "type">) };
        return;
      } else if (event === "error") throw errorEvent(body as unknown as ErrorBody, response);
    }
  } catch (error) {
    options.signal?.throwIfAborted();
    if (error instanceof ClocheApiError) throw error;
    throw lost(error);
  }
  throw lost(undefined);
}

const lost = (cause: unknown): ClocheConnectionError =>
  new ClocheConnectionError("the connection was lost before the command ended; it may run on", { cause });

function errorEvent(body: ErrorBody, response: FetchResponse): ClocheApiError {
  return new ClocheApiError(body.message, {
    code: body.code,
    status: response.status,
    requestId: response.headers.get("x-request-id") ?? undefined,
    details: body.details,
  });
}
