import type { ExecRequest, ExecResponse } from "@cloche/protocol";
import type { DataPlane } from "./data-plane.ts";
import type { CallOptions } from "./transport.ts";

/** Options of a command. */
export type ExecOptions = Omit<ExecRequest, "cmd" | "stdin_base64" | "stdin_stream" | "output_encoding"> &
  CallOptions;

/** Options of a command whose input and output are bytes. */
export interface ExecBytesOptions extends Omit<ExecOptions, "stdin"> {
  /**
   * Bytes, or text as UTF-8, up to 16 MiB; or any number of pieces that come while the command runs. The command may end before the
   * pieces do: then the iterator's `return` is called.
   */
  stdin?: string | Uint8Array | AsyncIterable<Uint8Array>;
}

/** As `ExecEvent`, with output as bytes. */
export type ExecBytesEvent =
  | { type: "stdout" | "stderr"; data: Uint8Array<ArrayBuffer> }
  | Extract<ExecEvent, { type: "exit" }>;

/** The events of `execStream`: output while the command runs, then its end. */
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
  // Not copied: a text from JavaScript would become a list of its letters. The service refuses it.
  return { cmd: cmd as string[], ...fields };
}

/** Not repeated after a lost connection, because the command may have run. */
export function exec(
  dataPlane: DataPlane,
  cmd: readonly string[],
  options: ExecOptions,
): Promise<ExecResponse> {
  return dataPlane.json("POST", "/v1/exec", { json: bodyOfExec(cmd, options), signal: options.signal });
}
