/**
 * Packs and unpacks local files by the system's tar. It knows every kind of file, and unpacks the data of an untrusted sandbox without
 * following its symlinks or leaving the directory.
 */
import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";

async function succeeded(child: ChildProcess, what: string): Promise<void> {
  let said = "";
  child.stderr?.on("data", (chunk: Buffer) => (said = (said + chunk.toString()).slice(-2_000)));
  const [code] = (await once(child, "close")) as [number | null];
  if (code !== 0) throw new Error(`${what}: tar failed: ${said.trim() || `exit code ${code}`}`);
}

/** A tar of `members` of a local directory as a stream. `done` rejects if tar could not read all of them. */
export function packLocal(
  directory: string,
  members: string[],
): { stream: ReadableStream<Uint8Array>; done: Promise<void> } {
  const child = spawn("tar", ["-C", directory, "-cf", "-", "--", ...members], {
    stdio: ["ignore", "pipe", "pipe"],
  });
  return {
    stream: Readable.toWeb(child.stdout as Readable) as ReadableStream<Uint8Array>,
    done: succeeded(child, directory),
  };
}

/** Unpacks a tar stream into an existing local directory; files belong to the user who runs this. */
export async function unpackLocal(directory: string, tar: ReadableStream<Uint8Array>): Promise<void> {
  const child = spawn("tar", ["-C", directory, "--no-same-owner", "-xf", "-"], {
    stdio: ["pipe", "ignore", "pipe"],
  });
  const done = succeeded(child, directory);
  const [fed, unpacked] = await Promise.allSettled([
    pipeline(Readable.fromWeb(tar as never), child.stdin as never),
    done,
  ]);
  if (unpacked.status === "rejected") throw unpacked.reason;
  if (fed.status === "rejected") throw fed.reason;
}
