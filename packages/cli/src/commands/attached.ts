import type { Attachment, ProcessInfo, SandboxProcess } from "@cloche/sdk";
import type { Readable } from "node:stream";
import { DetachKeys } from "../detach-keys.ts";
import { write, type Terminal } from "../terminal.ts";

/** How the attachment ended. */
export type AttachedEnd = { kind: "exit"; process: ProcessInfo } | { kind: "detached" };

interface AttachSettings {
  /** Bytes of output that were shown before. */
  afterStdout?: number;
  afterStderr?: number;
  /** Sends the local terminal's keys and size. Default true. */
  input?: boolean;
}

/** The size of the local terminal; undefined if standard output is none. */
export function terminalSize({ stdout }: Terminal): { cols: number; rows: number } | undefined {
  const { columns, rows } = stdout;
  // A terminal without a size says 0.
  return columns && rows ? { cols: columns, rows } : undefined;
}

/**
 * Shows the output of a process on this terminal, and sends it the keys and the size of the terminal. A lost connection is made again, with
 * a message. The terminal is restored when this resolves or rejects.
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

/** Puts the local terminal into raw mode, so that all keys are sent; the answer restores it. */
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
  const keys = new DetachKeys();
  const send = (piece: Buffer): void => {
    if (piece.length === 0) return;
    stdin.pause();
    attachment.write(piece).then(
      () => (stopped ? undefined : stdin.resume()),
      () => undefined, // the reading loop reports the error
    );
  };
  const data = (piece: Buffer): void => {
    if (onDetach === undefined) return send(piece);
    const typed = keys.feed(piece);
    send(typed.send);
    if (typed.detached) onDetach();
  };
  const end = (): void => {
    send(keys.end());
    attachment.endInput();
  };
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
