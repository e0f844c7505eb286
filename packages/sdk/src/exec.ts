import type { ExecRequest, ExecResponse } from "@cloche/protocol";
import type { DataPlane } from "./data-plane.ts";
import type { CallOptions } from "./transport.ts";

/** Options of a command. */
export type ExecOptions = Omit<ExecRequest, "cmd" | "stdin_base64" | "stdin_stream" | "output_encoding"> &
  CallOptions;

/** Options of a command whose input and output are bytes. */
export interface ExecBytesOptions extends Omit<ExecOptions, "stdin"> {
  /**
   * Bytes, or text as UTF-8, up to 16 MiB; or pieces of any number that come while the command runs. Its end does not wait
   * for theirs: where it ends first, the iterator is told by its `return`.
   */
  stdin?: string | Uint8Array | AsyncIterable<Uint8Array>;
}

/** As `ExecEvent`, with output as the bytes that it is. */
export type ExecBytesEvent =
  | { type: "stdout" | "stderr"; data: Uint8Array<ArrayBuffer> }
  | Extract<ExecEvent, { type: "exit" }>;

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

export function bodyOfExec(cmd: readonly string[], options: ExecOptions): ExecRequest {
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
