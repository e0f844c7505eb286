import type { Attachment, ProcessInfo, SandboxProcess } from "@cloche/sdk";
import type { Readable } from "node:stream";
import { write, type Terminal } from "../terminal.ts";

/** Ctrl-P Ctrl-Q, as Docker's, detaches and lets the process go on. */
const detachKeys = Buffer.from([0x10, 0x11]);

/** How an attached process ended for its user. */
export type AttachedEnd = { kind: "exit"; process: ProcessInfo } | { kind: "detached" };

interface AttachSettings {
  /** Bytes of output that the user has seen already. */
  afterStdout?: number;
  afterStderr?: number;
  /** Sends the local terminal's keys and size. Default true. */
  input?: boolean;
}

/** The size of the local terminal, where standard output is one. */
export function terminalSize({ stdout }: Terminal): { cols: number; rows: number } | undefined {
  const { columns, rows } = stdout;
  // A terminal that nobody sized says 0.
  return columns && rows ? { cols: columns, rows } : undefined;
}

/**
 * Shows a process on this terminal: output as it comes, keys and size of the local terminal to it. A lost connection is made
 * again and said. The local terminal is as before when this resolves, however it ends.
 */
export async function attachTo(
  process: SandboxProcess,
  terminal: Terminal,
  settings: AttachSettings = {},
): Promise<AttachedEnd> {
  const { afterStdout = 0, afterStderr = 0, input = true } = settings;
  const over = new AbortController();
  const signal = AbortSignal.any([terminal.signal, over.signal]);
  const attachment = await process.attach({
    after_stdout: afterStdout,
    after_stderr: afterStderr,
    signal,
    onConnection: (state) =>
      terminal.stderr.write(
        state === "lost" ? "\r\ncloche: connection lost, trying again…\r\n" : "cloche: connected\r\n",
      ),
  });
  const restore = input ? takeTerminal(attachment, process, terminal, () => over.abort(detached)) : undefined;
  try {
    for await (const event of attachment) {
      if (event.type === "exit") return { kind: "exit", process: event.process };
      if (event.type === "gap")
        terminal.stderr.write(
          `\r\ncloche: ${event.to - event.from} bytes of ${event.stream} are no longer kept\r\n`,
        );
      else await write(event.type === "stdout" ? terminal.stdout : terminal.stderr, event.data);
    }
    return { kind: "detached" };
  } catch (error) {
    if (error === detached) return { kind: "detached" };
    throw error;
  } finally {
    restore?.();
  }
}

const detached = new Error("detached");

/** Keys as they are typed, without the local terminal's own doing; answers what gives it back. */
function takeTerminal(
  attachment: Attachment,
  process: SandboxProcess,
  terminal: Terminal,
  onDetach: () => void,
): () => void {
  const { stdin, stdout } = terminal;
  const isTerminal = process.info.tty !== null && stdin.isTTY === true && stdin.setRawMode !== undefined;
  if (isTerminal) stdin.setRawMode?.(true);
  const resize = (): void => {
    const size = terminalSize(terminal);
    if (size !== undefined) attachment.resize(size);
  };
  if (process.info.tty !== null) {
    resize();
    stdout.on("resize", resize);
  }
  const feed = feedKeys(stdin, attachment, isTerminal ? onDetach : undefined);
  return () => {
    feed.stop();
    stdout.off("resize", resize);
    if (isTerminal) stdin.setRawMode?.(false);
    stdin.pause();
  };
}

function feedKeys(stdin: Readable, attachment: Attachment, onDetach?: () => void): { stop(): void } {
  let stopped = false;
  const data = (piece: Buffer): void => {
    if (onDetach !== undefined && piece.includes(detachKeys)) return onDetach();
    stdin.pause();
    attachment.write(piece).then(
      () => (stopped ? undefined : stdin.resume()),
      () => undefined, // the loop that reads tells it
    );
  };
  const end = (): void => attachment.endInput();
  stdin.on("data", data);
  stdin.once("end", end);
  return {
    stop() {
      stopped = true;
      stdin.off("data", data);
      stdin.off("end", end);
    },
  };
}
