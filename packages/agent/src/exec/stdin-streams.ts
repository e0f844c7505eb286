import { ClocheError } from "@cloche/protocol";
import type { Stdin } from "../commands/run-command.ts";

interface OpenStdin {
  /** Undefined until the program is launched. */
  stdin: Stdin | undefined;
  writing: boolean;
  ended: boolean;
}

/**
 * Standard inputs that stay open while their commands run, by the names from the callers (`stdin_stream`). Only one piece at a time is
 * written to each input, which limits the memory used here.
 */
export class StdinStreams {
  readonly #open = new Map<string, OpenStdin>();

  /** Throws `already_exists` if a running command has the name. Call `close` when the command has ended. */
  open(name: string): { take(stdin: Stdin): void; close(): void } {
    if (this.#open.has(name)) {
      throw new ClocheError(
        "already_exists",
        "stdin_stream is the name of a command's that runs; make up another",
      );
    }
    const one: OpenStdin = { stdin: undefined, writing: false, ended: false };
    this.#open.set(name, one);
    return { take: (stdin) => void (one.stdin = stdin), close: () => void this.#open.delete(name) };
  }

  /** Resolves when the piece is taken, or the command has ended. Throws 404 for an unknown name, 409 out of turn. */
  async write(name: string, data: Buffer | undefined, end: boolean): Promise<void> {
    const one = this.#open.get(name);
    if (one?.stdin === undefined) {
      throw new ClocheError("not_found", "stream: no command with this stdin_stream is running");
    }
    if (one.ended)
      throw new ClocheError("failed_precondition", "stream: this standard input was ended before", {
        reason: "input_closed",
      });
    if (one.writing) {
      throw new ClocheError(
        "failed_precondition",
        "stream: the piece before is not taken yet; wait for its answer",
      );
    }
    one.writing = true;
    one.ended = end;
    try {
      if (data !== undefined) await one.stdin.write(data);
      if (end) one.stdin.end();
    } finally {
      one.writing = false;
    }
  }
}
