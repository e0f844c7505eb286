import type { FileWatchEvent } from "@cloche/protocol";
import { bodyOf, type DataPlane } from "./data-plane.ts";
import { ClocheConnectionError } from "./errors.ts";
import { readEvents, type ServerSentEvent } from "./event-stream.ts";
import type { CallOptions } from "./transport.ts";

/**
 * One change. `renamed` has `from`. `modified` is also used for a file that a write replaced. `overflow` means that changes were lost:
 * list the directory again.
 */
export type FileChange = {
  type: "created" | "modified" | "deleted" | "renamed" | "attributes" | "overflow";
} & FileWatchEvent;

const changes: ReadonlySet<string> = new Set([
  "created",
  "modified",
  "deleted",
  "renamed",
  "attributes",
  "overflow",
]);

/**
 * Changes below a path. The loop ends when the watched path is deleted, or the sandbox is suspended, restored or started cold. It throws
 * ClocheConnectionError when the connection is lost.
 */
export class FileWatch implements AsyncIterable<FileChange, void> {
  readonly #events: AsyncGenerator<ServerSentEvent>;
  readonly #over: AbortController;
  readonly #signal: AbortSignal | undefined;

  private constructor(events: AsyncGenerator<ServerSentEvent>, over: AbortController, signal?: AbortSignal) {
    this.#events = events;
    this.#over = over;
    this.#signal = signal;
  }

  /** Used by `Files.watch`. */
  static async open(
    dataPlane: DataPlane,
    path: string,
    options: CallOptions & { recursive?: boolean; asUser?: string | undefined },
  ): Promise<FileWatch> {
    const { recursive, asUser, signal } = options;
    const over = new AbortController();
    const response = await dataPlane.request("GET", "/v1/files/watch", {
      query: { path, recursive, as_user: asUser },
      signal: signal === undefined ? over.signal : AbortSignal.any([signal, over.signal]),
    });
    const watch = new FileWatch(readEvents(bodyOf(response)), over, signal);
    if ((await watch.#next())?.event !== "ready")
      throw new ClocheConnectionError("the watch ended before it was ready");
    return watch;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<FileChange, void> {
    try {
      for (let next = await this.#next(); next !== undefined; next = await this.#next()) {
        const { event, data } = next;
        if (changes.has(event))
          yield { type: event as FileChange["type"], ...(JSON.parse(data) as FileWatchEvent) };
      }
    } finally {
      this.close();
    }
  }

  /** Ends the watch and its loop. */
  close(): void {
    this.#over.abort();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }

  async #next(): Promise<ServerSentEvent | undefined> {
    try {
      const { done, value } = await this.#events.next();
      return done === true ? undefined : value;
    } catch (error) {
      this.#signal?.throwIfAborted();
      if (this.#over.signal.aborted) return undefined;
      throw new ClocheConnectionError("the connection of the watch was lost; start another", {
        cause: error,
      });
    }
  }
}
