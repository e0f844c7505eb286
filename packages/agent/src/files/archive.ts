import { constants } from "node:os";
import type { Readable } from "node:stream";
import { createGunzip } from "node:zlib";
import { ClocheError, limits } from "@cloche/protocol";
import { drained } from "../http/drained.ts";
import type { Exchange } from "../http/exchange.ts";
import type { Guest, GuestProcess } from "../spawner/index.ts";
import { errnoFailure } from "./failures.ts";
import { clip, shownPath } from "./path.ts";

/** How the archive programs report (native/tar.h), on stderr. */
const reportBytes = 16_384;

/**
 * Streams the directory as a tar (POSIX, with hard links, owners and modes). An error after the first byte breaks the
 * stream off; the files may change meanwhile, each is packed with the size it had when its turn came.
 */
export async function packArchive(guest: Guest, path: string, exchange: Exchange): Promise<void> {
  const { response } = exchange;
  let report = "";
  const packing = guest.archive("create", path, (stream, chunk) => {
    if (stream === "stderr") {
      report = (report + chunk.toString()).slice(0, reportBytes);
      return;
    }
    if (!response.headersSent) response.writeHead(200, { "content-type": "application/x-tar" });
    if (response.destroyed || response.write(chunk)) return;
    return drained(response);
  });
  const kill = (): void => void packing.kill();
  exchange.gone.addEventListener("abort", kill, { once: true });
  const { code } = await packing.exited;
  if (code === 0) response.end();
  else throw failure(report, path);
}

/**
 * Unpacks the tar in the body (gzip is recognised) into a directory, which is made where it is missing. Entries with `..`
 * are skipped, and no link leads out of the sandbox's own tree. What was unpacked before an error stays.
 */
export async function unpackArchive(
  guest: Guest,
  path: string,
  exchange: Exchange,
): Promise<{ entries: number; skipped: number }> {
  let report = "";
  const unpacking = guest.archive("extract", path, (_stream, chunk) => {
    report = (report + chunk.toString()).slice(0, reportBytes);
  });
  const exited = unpacking.exited.then(({ code }) => code);
  exited.catch(() => undefined);
  try {
    await feed(unpacking, exchange.openBody(), exited);
  } catch (error) {
    await unpacking.kill();
    throw error;
  }
  if ((await exited) !== 0) throw failure(report, path);
  const [, entries, skipped] = /^done (\d+) (\d+)/.exec(report) ?? [];
  return { entries: Number(entries ?? 0), skipped: Number(skipped ?? 0) };
}

/** Pumps the body into the program until it is over, the program has ended, or the client stalls or goes away. */
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

/** The unzipped rest of a stream whose first chunk was already taken. */
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

function failure(report: string, path: string): ClocheError {
  const invalid = /^invalid (.*)/.exec(report);
  if (invalid) return new ClocheError("invalid_argument", `the archive cannot be unpacked: ${invalid[1]}`);
  const failed = /^failed (\d+) (.*)/s.exec(report);
  if (!failed) return new ClocheError("internal", "the archive could not be processed", { cause: report });
  const entry = (failed[2] ?? "").trimEnd();
  const about =
    entry === "" || entry === path ? `path: ${clip(shownPath(path))}` : `archive entry ${clip(entry)}`;
  const error = errnoFailure(Number(failed[1]), about);
  // Inside the archive nothing is "not found" for the caller: his request was, or his disk is.
  return error.code === "not_found" && entry !== path && Number(failed[1]) === constants.errno.ENOENT
    ? new ClocheError("invalid_argument", error.message)
    : error;
}
