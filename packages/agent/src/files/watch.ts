/**
 * `GET /v1/files/watch`: changes below a path, as server-sent events. `ready` is sent when the watch is complete. A client that reads
 * slowly holds up no other: it loses events, and an `overflow` says so.
 */
import type { FileWatchEvent } from "@cloche/protocol";
import { drained } from "../http/drained.ts";
import type { Exchange } from "../http/exchange.ts";
import { queryBoolean } from "../http/query.ts";
import type { FileEvent, GuestFiles, GuestPath, WatchedKind } from "../spawner/index.ts";
import { about } from "./acting.ts";
import { encodedPath, pathText, queryPath, shownPath } from "./path.ts";

const keepAliveMs = 15_000;

export async function watch(files: GuestFiles, exchange: Exchange): Promise<undefined> {
  const path = queryPath(exchange);
  const recursive = queryBoolean(exchange.query, "recursive") ?? false;
  const watched = await about(exchange, path, files.watch(path, recursive), {
    tooMany: "cannot be watched: there are too many watches, or too many directories in it",
  });
  const { response } = exchange;
  const close = (): void => watched.close();
  exchange.gone.addEventListener("abort", close, { once: true });
  // Without changes nothing is written, and a closed connection of the edge would go unnoticed.
  const { socket } = exchange.request;
  socket.once("end", close);
  let keepAlive: NodeJS.Timeout | undefined;
  try {
    response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-store" });
    response.write(eventText("ready", eventOf(shownPath(path), watched.type)));
    keepAlive = setInterval(() => response.write(": still watching\n\n"), keepAliveMs);
    for (;;) {
      const events = exchange.gone.aborted ? undefined : await watched.next();
      if (events === undefined) break;
      if (!response.write(events.map(textOf).join(""))) await drained(response);
    }
    response.end();
  } finally {
    clearInterval(keepAlive);
    socket.off("end", close);
    watched.close();
  }
  return undefined;
}

function textOf({ kind, path, type, from }: FileEvent): string {
  const event = eventOf(path, type);
  if (kind !== "renamed") return eventText(kind, event);
  const encoded = encodedPath(from);
  return eventText(kind, {
    ...event,
    from: pathText(from),
    ...(encoded !== undefined && { from_encoded: encoded }),
  });
}

function eventOf(path: GuestPath, type: WatchedKind): FileWatchEvent {
  const encoded = encodedPath(path);
  return {
    path: pathText(path),
    ...(encoded !== undefined && { path_encoded: encoded }),
    entry_type: type,
  };
}

const eventText = (event: string, data: FileWatchEvent): string =>
  `event: ${event}\ndata: ${JSON.stringify(data)}\n\n`;
