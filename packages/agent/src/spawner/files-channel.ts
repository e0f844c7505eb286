import { GuestFileError, type FileSubject } from "./errors.ts";
import type { FileEvent, FileEventKind, GuestWatch, WatchedKind } from "./file-types.ts";
import type { EntryKind, GuestEntry } from "./file-types.ts";
import { type Frame, frameTypes, FrameWriter, headerBytes, PayloadReader } from "./wire.ts";

const kinds: readonly EntryKind[] = ["file", "directory", "symlink", "fifo", "socket", "device"];
const subjects: readonly FileSubject[] = ["path", "destination", "user", "owner", "group", "attributes"];
const eventKinds: readonly FileEventKind[] = [
  "created",
  "modified",
  "deleted",
  "renamed",
  "attributes",
  "overflow",
];
const watchedKinds: readonly WatchedKind[] = ["file", "directory", "symlink"];

export interface Answer {
  entries: GuestEntry[];
  flags: number;
  payload: Buffer;
}

interface Pending {
  entries: GuestEntry[];
  resolve: (answer: Answer) => void;
  reject: (error: Error) => void;
}

/** Bytes of a frame's payload that are sent after the frame without a copy. */
export interface Rest {
  pieces: readonly Buffer[];
  bytes: number;
}

/**
 * The connection to the file server of one guest. Holds unanswered requests and open watches. Requests are independent: a slow request
 * delays no other.
 */
export class FilesChannel {
  #send: (frame: Buffer, rest?: readonly Buffer[]) => void;
  readonly #pending = new Map<number, Pending>();
  readonly #watches = new Map<number, OpenWatch>();
  #lastId = 0;
  #lost: Error | undefined;

  /** `send`: sends a frame and the rest of its payload. */
  constructor(send: (frame: Buffer, rest?: readonly Buffer[]) => void) {
    this.#send = send;
  }

  /** Sends a request, with the rights of `user`. Rejects with GuestFileError. */
  ask(type: number, flags: number, writer: FrameWriter, user?: string, rest?: Rest): Promise<Answer> {
    if (this.#lost) return Promise.reject(this.#lost);
    const id = this.#nextId();
    const { promise, resolve, reject } = Promise.withResolvers<Answer>();
    this.#pending.set(id, { entries: [], resolve, reject });
    this.#send(framed(writer.finish(type, flags, id, rest?.bytes), user, rest?.bytes), rest?.pieces);
    return promise;
  }

  /** Sends a request that has no answer. */
  notify(type: number, writer: FrameWriter, id = 0): void {
    if (!this.#lost) this.#send(writer.finish(type, 0, id));
  }

  async watch(writer: FrameWriter, flags: number, user?: string): Promise<GuestWatch> {
    if (this.#lost) throw this.#lost;
    const id = this.#nextId();
    const { promise, resolve, reject } = Promise.withResolvers<Answer>();
    this.#pending.set(id, { entries: [], resolve, reject });
    const watch = new OpenWatch(
      () => this.notify(frameTypes.watchMore, new FrameWriter(), id),
      () => {
        this.#watches.delete(id);
        this.notify(frameTypes.unwatch, new FrameWriter(), id);
      },
    );
    this.#watches.set(id, watch);
    this.#send(framed(writer.finish(frameTypes.watch, flags, id), user));
    try {
      watch.type = readWatched(new PayloadReader((await promise).payload));
    } catch (error) {
      this.#watches.delete(id);
      throw error;
    }
    return watch;
  }

  /** Requests that `ask` makes before it returns are sent together. */
  together<Answers>(ask: () => Answers): Answers {
    const send = this.#send;
    const frames = new FrameWriter();
    this.#send = (frame, rest = []) => [frame, ...rest].forEach((part) => frames.raw(part));
    try {
      return ask();
    } finally {
      this.#send = send;
      if (frames.sizeBytes > headerBytes) send(frames.finish(frameTypes.together, 0, 0));
    }
  }

  /** A frame from the file server. */
  onFrame(frame: Frame): void {
    if (frame.type === frameTypes.events) return this.#watches.get(frame.id)?.onEvents(frame.payload);
    const pending = this.#pending.get(frame.id);
    if (!pending) {
      if (frame.type === frameTypes.done) this.#watches.get(frame.id)?.onEnd();
      return;
    }
    if (frame.type === frameTypes.entries) {
      const payload = new PayloadReader(frame.payload);
      while (!payload.ended) pending.entries.push(readEntry(payload));
      return;
    }
    this.#pending.delete(frame.id);
    if (frame.type === frameTypes.failed) {
      const errno = frame.payload.readUInt32LE(0);
      pending.reject(new GuestFileError(errno, subjects[frame.flags] ?? "path", `errno ${errno}`));
      return;
    }
    pending.resolve({ entries: pending.entries, flags: frame.flags, payload: frame.payload });
  }

  /** The guest is gone: pending and later requests fail. */
  onLost(error: Error): void {
    this.#lost = error;
    for (const pending of this.#pending.values()) pending.reject(error);
    for (const watch of this.#watches.values()) watch.onLost(error);
    this.#pending.clear();
    this.#watches.clear();
  }

  #nextId(): number {
    do this.#lastId = (this.#lastId + 1) >>> 0;
    while (this.#lastId === 0 || this.#pending.has(this.#lastId) || this.#watches.has(this.#lastId));
    return this.#lastId;
  }
}

/** The frame itself, or wrapped in a frame that names the user. */
function framed(frame: Buffer, user: string | undefined, restBytes = 0): Buffer {
  if (user === undefined) return frame;
  return new FrameWriter().string(user).raw(frame).finish(frameTypes.as, 0, 0, restBytes);
}

/** Reads what `put_entry` of native/guest/entry.c writes. */
function readEntry(payload: PayloadReader): GuestEntry {
  const kind = kinds[payload.u8() - 1];
  if (!kind) throw new RangeError("unknown kind of entry");
  return {
    kind,
    mode: payload.u32(),
    sizeBytes: payload.u64(),
    modifiedAtMs: payload.i64(),
    path: payload.bytes(),
    owner: payload.bytes().toString(),
    group: payload.bytes().toString(),
    symlinkTarget: payload.bytes(),
    attributes: Array.from({ length: payload.u32() }, () => ({
      name: payload.bytes().toString(),
      value: payload.bytes(),
    })),
  };
}

function readWatched(payload: PayloadReader): WatchedKind {
  const kind = watchedKinds[payload.u8() - 1];
  if (!kind) throw new RangeError("unknown kind of what is watched");
  return kind;
}

function readEvents(payload: PayloadReader): FileEvent[] {
  const events: FileEvent[] = [];
  while (!payload.ended) {
    const kind = eventKinds[payload.u8() - 1];
    if (!kind) throw new RangeError("unknown kind of event");
    // Copies, because events may wait and the frame shares its memory with other received data.
    const [type, path, from] = [readWatched(payload), payload.bytes(), payload.bytes()];
    events.push({ kind, type, path: Buffer.from(path), from: Buffer.from(from) });
  }
  return events;
}

class OpenWatch implements GuestWatch {
  type: WatchedKind = "directory";
  readonly #more: () => void;
  readonly #end: () => void;
  #come: readonly FileEvent[] = [];
  #over: Error | "gone" | undefined;
  #owes = false;
  #waiting: (() => void) | undefined;

  constructor(more: () => void, end: () => void) {
    this.#more = more;
    this.#end = end;
  }

  async next(): Promise<readonly FileEvent[] | undefined> {
    if (this.#come.length === 0 && this.#over === undefined) {
      if (this.#owes) this.#more();
      this.#owes = false;
      await new Promise<void>((resolve) => {
        this.#waiting = resolve;
      });
    }
    const events = this.#come;
    this.#come = [];
    if (events.length > 0) return events;
    if (this.#over instanceof Error) throw this.#over;
    return undefined;
  }

  close(): void {
    if (this.#over === undefined) this.#end();
    this.#finish("gone");
  }

  onEvents(payload: Buffer): void {
    this.#come = [...this.#come, ...readEvents(new PayloadReader(payload))];
    this.#owes = true;
    this.#waiting?.();
  }

  onEnd(): void {
    this.close();
  }

  onLost(error: Error): void {
    this.#finish(error);
  }

  #finish(why: Error | "gone"): void {
    this.#over ??= why;
    this.#waiting?.();
  }
}
