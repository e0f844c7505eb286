import { constants } from "node:os";
import type { Readable } from "node:stream";
import { createGunzip } from "node:zlib";
import { ClocheError, limits } from "@cloche/protocol";
import { notExecuted } from "../commands/failures.ts";
import { drained } from "../http/drained.ts";
import type { Exchange } from "../http/exchange.ts";
import {
  type Guest,
  type GuestPath,
  type GuestProcess,
  type OutputStream,
  SpawnError,
} from "../spawner/index.ts";
import type { actingUser } from "./acting.ts";
import { errnoFailure, noSuchUser } from "./failures.ts";
import { clip, pathText, shownPath } from "./path.ts";

type ActingUser = ReturnType<typeof actingUser>;

/** Longest report of the archive programs on stderr (native/guest/tar.h). */
const reportBytes = 16_384;

/**
 * Streams the directory as a tar (POSIX, with hard links, owners and modes). An error after the first byte cuts the stream off. Files
 * may change meanwhile: each is packed with its size at the beginning of its turn.
 */
export async function packArchive(
  guest: Guest,
  path: GuestPath,
  exchange: Exchange,
  user: ActingUser,
): Promise<void> {
  const { response } = exchange;
  const type = archiveType(exchange.request.headers.accept);
  let report = "";
  const take = (stream: OutputStream, chunk: Buffer): void | Promise<void> => {
    if (stream === "stderr") {
      report = (report + chunk.toString()).slice(0, reportBytes);
      return;
    }
    if (!response.headersSent) response.writeHead(200, { "content-type": type });
    if (response.destroyed || response.write(chunk)) return;
    return drained(response);
  };
  const packing = guest.archive("create", path, take, user?.[1]);
  const kill = (): void => void packing.kill();
  exchange.gone.addEventListener("abort", kill, { once: true });
  const { code } = await endOf(packing, user);
  if (code === 0) response.end();
  else throw failure(report, path);
}

/** Some clients, such as those generated from the OpenAPI document, accept only `application/octet-stream`. */
const archiveType = (accept = ""): string =>
  accept.trim().toLowerCase() === bytesType ? bytesType : "application/x-tar";
const bytesType = "application/octet-stream";

export interface Unpacked {
  entries: number;
  skipped: number;
  /** The first skipped entries with the reasons; absent if none was skipped. */
  skipped_entries?: { path: string; reason: string }[];
}

/**
 * Unpacks the tar in the body (gzip is recognised) into a directory, which is made if it is missing. Links are made last, and nothing is
 * made outside the directory. Impossible entries (a device, a path with `..`) are skipped. Entries unpacked before an error stay.
 */
export async function unpackArchive(
  guest: Guest,
  path: GuestPath,
  exchange: Exchange,
  user: ActingUser,
): Promise<Unpacked> {
  let report = "";
  const listen = (_stream: OutputStream, chunk: Buffer): void => {
    report = (report + chunk.toString()).slice(0, reportBytes);
  };
  const unpacking = guest.archive("extract", path, listen, user?.[1]);
  const exited = endOf(unpacking, user).then(({ code }) => code);
  exited.catch(() => undefined);
  try {
    await feed(unpacking, exchange.openBody(), exited);
  } catch (error) {
    await unpacking.kill();
    throw error;
  }
  if ((await exited) !== 0) throw failure(report, path);
  const [entries, skipped] = (reported(report, "done")[0] ?? "").split(" ");
  const named = reported(report, "skipped").map((line) => ({
    path: line.slice(line.indexOf(" ") + 1),
    reason: whySkipped(Number.parseInt(line, 10)),
  }));
  return {
    entries: Number(entries ?? 0),
    skipped: Number(skipped ?? 0),
    ...(named.length > 0 && { skipped_entries: named }),
  };
}

/** Waits for the end of the program. If it could not run, or its guest ended, this throws as an exec would. */
async function endOf(program: GuestProcess, user: ActingUser): Promise<{ code: number }> {
  try {
    return await program.exited;
  } catch (error) {
    if (error instanceof SpawnError) {
      if (error.stage === "user" && user && error.message !== "") throw noSuchUser(user[0], user[1]);
      notExecuted(error, { cmd: ["tar"] });
    }
    throw error;
  }
}

/** Writes the body into the program until the body ends, the program ends, or the client stalls or goes away. */
async function feed(unpacking: GuestProcess, body: Readable, exited: Promise<unknown>): Promise<void> {
  const ended = Symbol("ended");
  const end = exited.then(
    () => ended,
    () => ended,
  );
  const chunks = body[Symbol.asyncIterator]() as AsyncIterator<Buffer>;
  const first = await nextChunk(chunks, end);
  const zipped = isChunk(first) && first.value[0] === 0x1f && first.value[1] === 0x8b;
  const plain = zipped ? gunzip(first.value, chunks, end) : undefined;
  for (let chunk = plain ? await nextChunk(plain, end) : first; isChunk(chunk); ) {
    const taken = await Promise.race([unpacking.write(chunk.value), end]);
    if (taken === ended) break;
    chunk = await nextChunk(plain ?? chunks, end);
  }
  unpacking.end();
}

type Step = IteratorResult<Buffer> | symbol;

const isChunk = (step: Step): step is IteratorYieldResult<Buffer> =>
  typeof step !== "symbol" && step.done !== true;

async function nextChunk(chunks: AsyncIterator<Buffer>, end: Promise<symbol>): Promise<Step> {
  let timer: NodeJS.Timeout | undefined;
  const stalled = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(
      () => reject(new ClocheError("deadline_exceeded", "the archive stalled; send it without long pauses")),
      limits.idleConnectionMs,
    );
  });
  try {
    return await Promise.race([chunks.next(), end, stalled]);
  } catch (error) {
    if (error instanceof ClocheError) throw error;
    if ((error as NodeJS.ErrnoException).code?.startsWith("Z_") === true) {
      throw new ClocheError("invalid_argument", "the body is not a sound gzip stream", { cause: error });
    }
    throw new ClocheError("canceled", "the client went away before its archive was complete", {
      cause: error,
    });
  } finally {
    clearTimeout(timer);
  }
}

/** Unzips a stream whose first chunk was already read. */
function gunzip(first: Buffer, rest: AsyncIterator<Buffer>, end: Promise<symbol>): AsyncIterator<Buffer> {
  const unzip = createGunzip();
  const pump = async (): Promise<void> => {
    for (let step: Step = { value: first, done: false }; isChunk(step); step = await nextChunk(rest, end)) {
      if (!unzip.write(step.value))
        await new Promise((resolve) => unzip.once("drain", resolve).once("close", resolve));
    }
    unzip.end();
  };
  pump().catch((error: unknown) => unzip.destroy(error instanceof Error ? error : new Error(String(error))));
  return unzip[Symbol.asyncIterator]() as AsyncIterator<Buffer>;
}

/** The lines of the report that begin with `word`, without it. Names in a line may contain other line-end characters. */
const reported = (report: string, keyword: string): string[] =>
  report
    .split("\n")
    .filter((line) => line.startsWith(`${keyword} `))
    .map((line) => line.slice(keyword.length + 1));

function whySkipped(number: number): string {
  const { errno } = constants;
  if (number === errno.EXDEV) return "leads outside the directory";
  if (number === errno.EPERM || number === errno.EACCES) return "may not be made in a sandbox";
  if (number === errno.EISDIR) return "a directory lies in its place";
  if (number === errno.ENOTDIR) return "something that is no directory lies in its way";
  if (number === errno.ENOENT) return "what it links to is not there";
  if (number === errno.ENAMETOOLONG) return "has a name that is too long";
  if (number === errno.EOVERFLOW) return "has an owner, a mode or a time that cannot be";
  if (number === errno.EOPNOTSUPP) return "is of an unknown kind";
  if (number === errno.EINVAL) return "links to nothing, or has a name that cannot be";
  if (number === errno.ELOOP) return "lies behind links that lead in a ring";
  if (number === errno.EEXIST) return "lies behind a link that leads nowhere";
  if (number === errno.EMLINK) return "is one name too many of its file";
  if (number === errno.EROFS) return "lies where nothing can be written";
  return `cannot be made (errno ${number})`;
}

function failure(report: string, packed: GuestPath): ClocheError {
  const path = pathText(shownPath(packed));
  const [invalid] = reported(report, "invalid");
  if (invalid !== undefined)
    return new ClocheError("invalid_argument", `the archive cannot be unpacked: ${invalid}`);
  const failed = /(?:^|\n)failed (\d+) (.*)/s.exec(report);
  if (!failed) return new ClocheError("internal", "the archive could not be processed", { cause: report });
  const entry = (failed[2] ?? "").trimEnd();
  const about = entry === "" || entry === path ? `path: ${clip(path)}` : `archive entry ${clip(entry)}`;
  const error = errnoFailure(Number(failed[1]), about);
  // A missing entry inside the archive is not a 404 for the caller: either the request or the disk is at fault.
  return error.code === "not_found" && entry !== path && Number(failed[1]) === constants.errno.ENOENT
    ? new ClocheError("invalid_argument", error.message)
    : error;
}
