/**
 * Copies a machine's changed memory into a clone of its base memory (native/vm/vm-pages.c). Three steps keep the pause short:
 * prepare, copy while the machine is paused, write afterwards.
 */
import { type ChildProcessByStdio, spawn } from "node:child_process";
import { createInterface } from "node:readline";
import type { Readable, Writable } from "node:stream";
import { ClocheError } from "@cloche/protocol";

const exitNoRoom = 75;
/** Up to this much changed memory is copied to a buffer; the rest is written to disk during the pause. */
const bufferLimitMb = 1_024;

export interface CaptureRequest {
  readonly program: string;
  readonly pid: number;
  /** Inode of the base memory as the process maps it. */
  readonly inode: bigint;
  /** A clone of the base memory. */
  readonly output: string;
}

/** One capture: `prepare` → (pause) `copy` (resume) → `finish`; `abandon` at any time. */
export class MemoryCapture {
  readonly #child: ChildProcessByStdio<Writable, Readable, Readable>;
  readonly #lines: AsyncIterator<string>;
  readonly #ended: Promise<number | null>;
  #stderr = "";

  private constructor(request: CaptureRequest) {
    const args = [String(request.pid), String(request.inode), request.output, String(bufferLimitMb)];
    this.#child = spawn(request.program, args, { stdio: ["pipe", "pipe", "pipe"] });
    this.#child.stdin.on("error", () => undefined); // Its exit code tells the failure.
    this.#child.stderr.on("data", (chunk: Buffer) => {
      this.#stderr = (this.#stderr + chunk.toString()).slice(-2_000);
    });
    this.#ended = new Promise((resolve) => {
      this.#child.on("close", resolve);
      this.#child.on("error", (error) => {
        this.#stderr = error.message;
        resolve(null);
      });
    });
    this.#lines = createInterface({ input: this.#child.stdout })[Symbol.asyncIterator]();
  }

  /** Resolves when it is ready for the pause. */
  static async prepare(request: CaptureRequest): Promise<MemoryCapture> {
    const capture = new MemoryCapture(request);
    await capture.#expect("ready");
    return capture;
  }

  /** Call while the machine is paused. Answers the number of pages copied; then the machine may be resumed. */
  async copy(): Promise<number> {
    this.#child.stdin.write("go\n");
    return this.#expect("copied");
  }

  /** Resolves when the memory image is complete and synced. */
  async finish(): Promise<void> {
    await this.#expect("done");
    if ((await this.#ended) !== 0) throw await this.#failure();
  }

  /** Ends the capture; its memory image is unusable. Harmless after `finish`. */
  async abandon(): Promise<void> {
    this.#child.kill("SIGKILL");
    await this.#ended;
  }

  async #expect(expected: string): Promise<number> {
    const { value, done } = await this.#lines.next();
    const [reply, number] = done ? [] : String(value).split(" ");
    if (reply !== expected) throw await this.#failure();
    return Number(number);
  }

  async #failure(): Promise<Error> {
    this.#child.stdin.end();
    const code = await this.#ended;
    const cause = new Error(`vm-pages ended with ${code}: ${this.#stderr.trim()}`);
    if (code === exitNoRoom)
      return new ClocheError(
        "resource_exhausted",
        "no room on the host's disk for the memory of the machine; delete sandboxes or checkpoints and try again",
        { cause, resource: "disk" },
      );
    return cause;
  }
}
