import { type ChildProcess, spawn } from "node:child_process";
import type { Duplex } from "node:stream";
import type { GuestFile, GuestFiles } from "../spawner/index.ts";
import {
  type PulledImage,
  type PullListener,
  type PullMessage,
  type PullRequest,
  readFailed,
} from "./pull-protocol.ts";

/** Why a pull failed; the message is public. */
export class PullError extends Error {
  override readonly name = "PullError";
}

const readBytesMax = 256 * 1024;
const lineBytesMax = 16 * 1024 * 1024;

/**
 * Runs the pull process and answers the pulled image. `program` is the command to run (node and the bundle). Layouts are read through
 * `files`, with the users' view of the tree. When `signal` aborts, the process is killed and PullError is thrown.
 */
export async function pull(
  program: readonly string[],
  request: PullRequest,
  files: () => GuestFiles,
  listener: PullListener,
  signal: AbortSignal,
): Promise<PulledImage> {
  const [node = "", ...args] = program;
  const child = spawn(node, [...args, "pull"], {
    env: {},
    cwd: "/",
    stdio: ["ignore", "ignore", "inherit", "pipe"],
  });
  const ended = new Promise<void>((resolve) => {
    child.once("close", () => resolve());
    child.once("error", () => resolve());
  });
  const kill = (): void => void child.kill("SIGKILL");
  signal.addEventListener("abort", kill, { once: true });
  if (signal.aborted) kill();
  const layout = new LayoutFiles(files);
  try {
    return await converse(child, request, layout, listener);
  } catch (error) {
    if (signal.aborted) throw new PullError("the pull was called off");
    throw error;
  } finally {
    signal.removeEventListener("abort", kill);
    kill();
    await ended;
    layout.close();
  }
}

async function converse(
  child: ChildProcess,
  request: PullRequest,
  layout: LayoutFiles,
  listener: PullListener,
): Promise<PulledImage> {
  const socket = child.stdio[3] as Duplex;
  socket.on("error", () => undefined); // the end of the process is handled below
  socket.write(`${JSON.stringify(request)}\n`);
  for await (const line of lines(socket)) {
    const message = JSON.parse(line) as PullMessage;
    if ("note" in message) listener.note(message.note);
    else if ("progress" in message) listener.progress(message.progress);
    else if ("done" in message) return message.done;
    else if ("failed" in message) throw new PullError(message.failed.message);
    else await layout.answer(socket, message.read);
  }
  throw new PullError("the pull ended early: the sandbox may be out of memory");
}

async function* lines(socket: Duplex): AsyncGenerator<string> {
  let rest = "";
  socket.setEncoding("utf8");
  for await (const chunk of socket as AsyncIterable<string>) {
    rest += chunk;
    if (rest.length > lineBytesMax) throw new PullError("the pull process misbehaved");
    for (let end = rest.indexOf("\n"); end >= 0; end = rest.indexOf("\n")) {
      yield rest.slice(0, end);
      rest = rest.slice(end + 1);
    }
  }
}

/** Reads files of the users' tree for the pull process; keeps the last few open. */
class LayoutFiles {
  readonly #files: () => GuestFiles;
  readonly #open = new Map<string, GuestFile>();

  constructor(files: () => GuestFiles) {
    this.#files = files;
  }

  async answer(
    socket: Duplex,
    { path, offset, length }: { path: string; offset: number; length: number },
  ): Promise<void> {
    try {
      const file = await this.#file(path);
      socket.write(frame(await file.read(offset, Math.min(length, readBytesMax))));
    } catch {
      const head = Buffer.alloc(4);
      head.writeUInt32BE(readFailed);
      socket.write(Buffer.concat([head, frame(Buffer.from(`${path} cannot be read in the sandbox`))]));
    }
  }

  close(): void {
    for (const file of this.#open.values()) file.close();
    this.#open.clear();
  }

  async #file(path: string): Promise<GuestFile> {
    const known = this.#open.get(path);
    if (known !== undefined) return known;
    const file = await this.#files().open(path);
    for (const [other, old] of this.#open) {
      if (this.#open.size < 8) break;
      this.#open.delete(other);
      old.close();
    }
    this.#open.set(path, file);
    return file;
  }
}

function frame(bytes: Buffer): Buffer {
  const head = Buffer.alloc(4);
  head.writeUInt32BE(bytes.length);
  return Buffer.concat([head, bytes]);
}
