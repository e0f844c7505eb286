import { posix } from "node:path";
import type { FileWatchEvent } from "@cloche/protocol";
import { readEvents, type SandboxDataPlane } from "@cloche/sdk";
import { E2bError } from "../e2b-error.ts";
import type { Fields } from "../http.ts";
import { entryOf, followed, statIfThere } from "./entry.ts";

/** A watch that runs: told once it hears everything. */
export interface DirectoryWatch {
  events: AsyncGenerator<Fields, void>;
}

export interface WatchWish {
  recursive: boolean;
  /** Each event with what its path is by then, where it is anything. */
  withEntries: boolean;
}

/** `FilesystemEvent`s of a directory. Throws where there is none; its end is an error when some events were lost. */
export async function watchDirectory(
  plane: SandboxDataPlane,
  path: string,
  { recursive, withEntries }: WatchWish,
  signal: AbortSignal,
): Promise<DirectoryWatch> {
  const there = await followed(plane, path);
  if (there === undefined) throw new E2bError("not_found", `path ${path} not found`);
  if (!there.is_dir) throw new E2bError("invalid_argument", `path ${path} is not a directory`);
  const response = await plane.dataPlane.request("GET", "/v1/files/watch", {
    query: { path, recursive },
    headers: { accept: "text/event-stream" },
    signal,
  });
  const events = readEvents(response.body ?? new Blob([]).stream());
  const first = await events.next();
  if (first.done === true || first.value.event !== "ready")
    throw new E2bError("unavailable", `the watch of ${path} ended at once`);
  return { events: toEvents(events, path, withEntries ? plane : undefined) };
}

async function* toEvents(
  events: AsyncGenerator<{ event: string; data: string }>,
  root: string,
  plane: SandboxDataPlane | undefined,
): AsyncGenerator<Fields, void> {
  for await (const { event, data } of events) {
    if (event === "overflow")
      throw new E2bError("data_loss", `changes below ${root} came too fast: some were lost`);
    const change = JSON.parse(data) as FileWatchEvent;
    const entry = plane && event !== "deleted" ? await entryAt(plane, change.path) : undefined;
    for (const type of typesOf(event, change)) {
      const isLeft = type === "EVENT_TYPE_RENAME";
      const path = isLeft ? (change.from ?? change.path) : change.path;
      yield { name: posix.relative(root, path), type, ...(entry && !isLeft && { entry }) };
    }
  }
}

/** Undefined where it is gone by now. */
async function entryAt(plane: SandboxDataPlane, path: string): Promise<Fields | undefined> {
  const info = await statIfThere(plane, path);
  return info && entryOf(plane, info);
}

/**
 * In Cloche a new file has its owner and content before it becomes visible. E2B sends three events for it: clients count them, or wait for
 * the write.
 */
const ofNewFile = ["EVENT_TYPE_CREATE", "EVENT_TYPE_CHMOD", "EVENT_TYPE_WRITE"];

function typesOf(event: string, { entry_type }: FileWatchEvent): string[] {
  switch (event) {
    case "created":
      return entry_type === "file" ? ofNewFile : ["EVENT_TYPE_CREATE"];
    case "modified":
      return ["EVENT_TYPE_WRITE"];
    case "deleted":
      return ["EVENT_TYPE_REMOVE"];
    case "renamed":
      return ["EVENT_TYPE_RENAME", "EVENT_TYPE_CREATE"];
    case "attributes":
      return ["EVENT_TYPE_CHMOD"];
    default:
      return [];
  }
}
