// A child process that speaks JSON lines: one answer for each line written, in order.
import { type ChildProcessByStdio, spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import type { Readable, Writable } from "node:stream";

export class LineProcess {
  readonly child: ChildProcessByStdio<Writable, Readable, null>;
  readonly #lines: AsyncIterator<string>;

  constructor(argv: readonly string[], env: Record<string, string> = {}) {
    const [file = "", ...args] = argv;
    this.child = spawn(file, args, { stdio: ["pipe", "pipe", "inherit"], env: { ...process.env, ...env } });
    this.#lines = createInterface({ input: this.child.stdout })[Symbol.asyncIterator]();
  }

  async read(): Promise<Record<string, unknown>> {
    const { value, done } = await this.#lines.next();
    if (done) throw new Error("the child said no more");
    return JSON.parse(value) as Record<string, unknown>;
  }

  /** Writes one line (JSON unless it is text) and reads the answer. */
  ask(line: object | string): Promise<Record<string, unknown>> {
    this.child.stdin.write(`${typeof line === "string" ? line : JSON.stringify(line)}\n`);
    return this.read();
  }

  /** Ends its input and waits until it is gone. */
  async end(): Promise<void> {
    if (this.child.exitCode !== null || this.child.signalCode !== null) return;
    const exited = once(this.child, "exit");
    this.child.stdin.end();
    await exited;
  }

  async kill(): Promise<void> {
    const exited = once(this.child, "exit");
    this.child.kill("SIGKILL");
    await exited;
  }
}
