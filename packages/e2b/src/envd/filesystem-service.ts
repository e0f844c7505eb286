/** `filesystem.Filesystem`. As envd does, it acts as root and gives what it makes to the user; the user says where relative paths begin. */
import { posix } from "node:path";
import { setImmediate as nextTurn } from "node:timers/promises";
import { eachLimited } from "@cloche/base";
import { type EntryInfo, limits, type ListResponse } from "@cloche/protocol";
import { ClocheApiError, type SandboxDataPlane } from "@cloche/sdk";
import { badField, E2bError } from "../e2b-error.ts";
import type { Fields } from "../http.ts";
import type { OpenSandbox } from "./sandboxes.ts";
import type { Account } from "./accounts.ts";
import type { MessageStream } from "./connect-stream.ts";
import { entryOf, followed, stat as statOf } from "./entry.ts";
import { withJson } from "./held-bytes.ts";
import { makeDirectories } from "./make-directories.ts";
import { userPath } from "./user-path.ts";
import { watchDirectory, type WatchWish } from "./watch-events.ts";

const statsAtOnce = 16;
const entriesOfTurn = 100;

export async function stat({ plane }: OpenSandbox, { path }: Fields, account: Account): Promise<Fields> {
  return { entry: await entryOf(plane, await statOf(plane, userPath("path", path, account))) };
}

export async function makeDir({ plane }: OpenSandbox, { path }: Fields, account: Account): Promise<Fields> {
  const directory = userPath("path", path, account);
  const there = await followed(plane, directory);
  if (there?.is_dir === true) throw new E2bError("already_exists", `directory already exists: ${directory}`);
  if (there !== undefined)
    throw new E2bError("invalid_argument", `path already exists but it is not a directory: ${directory}`);
  await makeDirectories(plane, directory, account);
  return { entry: await entryOf(plane, await statOf(plane, directory)) };
}

export async function move({ plane }: OpenSandbox, request: Fields, account: Account): Promise<Fields> {
  const source = userPath("source", request.source, account);
  const destination = userPath("destination", request.destination, account);
  await statOf(plane, source);
  await makeDirectories(plane, posix.dirname(destination), account);
  await plane.files.move(source, destination);
  return { entry: await entryOf(plane, await statOf(plane, destination)) };
}

/** Removes an entry with everything below it; a missing entry is no error. */
export async function remove({ plane }: OpenSandbox, { path }: Fields, account: Account): Promise<Fields> {
  try {
    await plane.files.delete(userPath("path", path, account), { recursive: true });
  } catch (error) {
    if (
      !(
        error instanceof ClocheApiError &&
        error.status === 404 &&
        !error.message.startsWith("there is no sandbox")
      )
    )
      throw error;
  }
  return {};
}

export async function listDir(
  { plane, held }: OpenSandbox,
  request: Fields,
  account: Account,
): Promise<Fields> {
  const depth = Number(request.depth ?? 0) || 1;
  if (!Number.isInteger(depth) || depth < 1) throw badField("depth", request.depth, "a whole number from 1");
  const path = userPath("path", request.path, account);
  const there = await followed(plane, path);
  if (there === undefined) throw new E2bError("not_found", `path not found: ${path}`);
  if (!there.is_dir) throw new E2bError("invalid_argument", `path is not a directory: ${path}`);
  const real = await resolved(plane, path);
  const { body } = await plane.dataPlane.request("GET", "/v1/files/list", {
    query: { path: real, depth, attributes: true, targets: true },
  });
  const tooLarge = (): E2bError =>
    new E2bError(
      "resource_exhausted",
      `the list of ${path} within depth ${depth} is too large for the memory of the service now; list the directories below it`,
    );
  return await withJson<ListResponse, Fields>(
    body as AsyncIterable<Uint8Array>,
    held,
    tooLarge,
    async (list) => {
      if (list.truncated && list.entries.length >= limits.listEntries)
        throw new E2bError(
          "resource_exhausted",
          `${path} has more than ${limits.listEntries} entries within depth ${depth}`,
        );
      const answered: Fields[] = Array.from({ length: list.entries.length });
      const fill = async ([at, info]: [number, EntryInfo]): Promise<void> => {
        answered[at] = await entryOf(plane, info, posix.join(path, posix.relative(real, info.path)));
      };
      // Other teams are served between the parts: paths are long, and working them out takes a second for a large list.
      const entries = [...list.entries.entries()];
      for (let from = 0; from < entries.length; from += entriesOfTurn) {
        await eachLimited(entries.slice(from, from + entriesOfTurn), fill, statsAtOnce);
        await nextTurn();
      }
      return { entries: answered };
    },
  );
}

/** The target of a directory's path, if its last part is a link. */
async function resolved(plane: SandboxDataPlane, path: string): Promise<string> {
  let at = path;
  for (let hop = 0; hop < 40; hop += 1) {
    const { symlink_target: target } = await statOf(plane, at);
    if (target === "") return at;
    at = posix.resolve(posix.dirname(at), target);
  }
  throw new E2bError("invalid_argument", `too many symlinks: ${path}`);
}

/** There are no network mounts in a sandbox that `allowNetworkMounts` could ask for. */
const watchWish = (request: Fields): WatchWish => ({
  recursive: request.recursive === true,
  withEntries: (request.includeEntry ?? request.include_entry) === true,
});

export async function watchDir(
  { plane }: OpenSandbox,
  request: Fields,
  account: Account,
  stream: MessageStream,
  signal: AbortSignal,
): Promise<void> {
  const path = userPath("path", request.path, account);
  const { events } = await watchDirectory(plane, path, watchWish(request), signal);
  await stream.send({ start: {} });
  for await (const event of events) await stream.send({ filesystem: event });
}

export async function createWatcher(
  { watchers }: OpenSandbox,
  request: Fields,
  account: Account,
): Promise<Fields> {
  const path = userPath("path", request.path, account);
  return { watcherId: await watchers.create(path, watchWish(request)) };
}

export const getWatcherEvents = async ({ watchers }: OpenSandbox, request: Fields): Promise<Fields> => ({
  events: await watchers.take(request.watcherId ?? request.watcher_id),
});

export async function removeWatcher({ watchers }: OpenSandbox, request: Fields): Promise<Fields> {
  watchers.remove(request.watcherId ?? request.watcher_id);
  return {};
}
