/** Rights, owners and copies of files: chmod, chown, copy, mkdir and move, whose fields come in a JSON body. */
import { ClocheError, type EntryInfo } from "@cloche/protocol";
import type { Exchange } from "../http/exchange.ts";
import { type JsonObject, optionalBoolean, requiredString } from "../http/fields.ts";
import type { GuestFiles } from "../spawner/index.ts";
import { about, accountName } from "./acting.ts";
import { entryInfo } from "./entry-info.ts";
import { bodyPath, pathText, shownPath } from "./path.ts";
import { readMode } from "./write.ts";

export async function chmod(files: GuestFiles, exchange: Exchange): Promise<EntryInfo> {
  const body = await exchange.readJson();
  const path = bodyPath(body, "path");
  const mode = readMode(requiredString(body, "mode"), "mode");
  const recursive = optionalBoolean(body, "recursive") ?? false;
  return entryInfo(await about(exchange, path, files.chmod(path, mode, recursive)), shownPath(path));
}

export async function chown(files: GuestFiles, exchange: Exchange): Promise<EntryInfo> {
  const body = await exchange.readJson();
  const path = bodyPath(body, "path");
  const [user, group] = [account(body, "user"), account(body, "group")];
  if (user === "" && group === "")
    throw new ClocheError("invalid_argument", "user or group is required: a name or a number");
  const recursive = optionalBoolean(body, "recursive") ?? false;
  const changed = about(exchange, path, files.chown(path, user, group, recursive), {
    owner: ["user", user],
    group: ["group", group],
  });
  return entryInfo(await changed, shownPath(path));
}

/** Empty: left as it is. */
function account(body: JsonObject, field: string): string {
  const value = body[field];
  return value === undefined || value === null ? "" : accountName(value, field, false);
}

export async function copy(files: GuestFiles, exchange: Exchange): Promise<EntryInfo> {
  const body = await exchange.readJson();
  const source = bodyPath(body, "source");
  const destination = bodyPath(body, "destination");
  const recursive = optionalBoolean(body, "recursive") ?? false;
  const copied = await about(exchange, source, files.copy(source, destination, recursive), {
    path: ["source", pathText(source)],
    destination: ["destination", pathText(destination)],
    socket: "is a socket, which cannot be copied",
    ...(recursive ? {} : { directory: "is a directory; pass recursive=true to copy it" }),
  });
  return entryInfo(copied, shownPath(destination));
}

export async function mkdir(files: GuestFiles, exchange: Exchange): Promise<EntryInfo> {
  const body = await exchange.readJson();
  const path = bodyPath(body, "path");
  const parents = optionalBoolean(body, "parents") ?? false;
  return entryInfo(await about(exchange, path, files.mkdir(path, parents)), shownPath(path));
}

export async function move(files: GuestFiles, exchange: Exchange): Promise<EntryInfo> {
  const body = await exchange.readJson();
  const source = bodyPath(body, "source");
  const destination = bodyPath(body, "destination");
  const moved = await about(exchange, source, files.move(source, destination), {
    path: ["source", pathText(source)],
    destination: ["destination", pathText(destination)],
  });
  return entryInfo(moved, shownPath(destination));
}
