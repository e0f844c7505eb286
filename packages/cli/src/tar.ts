/**
 * Packs and unpacks local files by the system's tar. It knows every kind of file, and unpacks the data of an untrusted sandbox without
 * following its symlinks or leaving the directory.
 */
import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";

/** What GNU tar (exit code 1) says of files that change while it reads them; with `LC_ALL=C`. */
const isChange = /: (file changed as we read it|File removed before we read it|File shrank by \d+ bytes.*)$/;
const environment = (): NodeJS.ProcessEnv => ({ ...process.env, LC_ALL: "C" });

/** Resolves to tar's warnings of files that changed meanwhile. */
async function succeeded(child: ChildProcess, what: string): Promise<string[]> {
  let stderr = "";
  child.stderr?.on("data", (chunk: Buffer) => (stderr = (stderr + chunk.toString()).slice(-2_000)));
  const [code] = (await once(child, "close")) as [number | null];
  const lines = stderr.trim().split("\n");
  if (code === 1 && lines.every((line) => isChange.test(line))) return lines;
  if (code !== 0) throw new Error(`${what}: tar failed: ${stderr.trim() || `exit code ${code}`}`);
  return [];
}

/** Options that make every file root's. bsdtar (macOS) has others than GNU tar. */
function rootOwned(): string[] {
  const { stdout } = spawnSync("tar", ["--version"], { encoding: "utf8" });
  return stdout?.startsWith("bsdtar") ? ["--uid", "0", "--gid", "0"] : ["--owner=0", "--group=0"];
}

/**
 * A tar of `members` of a local directory as a stream. The files belong to root, with `keepOwners` to whom they belong here. `done`
 * resolves to warnings of files that changed meanwhile, and rejects if tar could not read all of them.
 */
export function packLocal(
  directory: string,
  members: string[],
  keepOwners: boolean,
): { stream: ReadableStream<Uint8Array>; done: Promise<string[]> } {
  const owners = ["--numeric-owner", ...(keepOwners ? [] : rootOwned())];
  const child = spawn("tar", ["-C", directory, ...owners, "-cf", "-", "--", ...members], {
    stdio: ["ignore", "pipe", "pipe"],
    env: environment(),
  });
  return {
    stream: Readable.toWeb(child.stdout as Readable) as ReadableStream<Uint8Array>,
    done: succeeded(child, directory),
  };
}

/** Unpacks a tar stream into an existing local directory; files belong to the user who runs this, unless `keepOwners`. */
export async function unpackLocal(
  directory: string,
  tar: ReadableStream<Uint8Array>,
  keepOwners: boolean,
): Promise<void> {
  const owners = keepOwners ? ["--same-owner", "--numeric-owner"] : ["--no-same-owner"];
  const child = spawn("tar", ["-C", directory, ...owners, "-xf", "-"], {
    stdio: ["pipe", "ignore", "pipe"],
    env: environment(),
  });
  const done = succeeded(child, directory);
  const [fed, unpacked] = await Promise.allSettled([
    pipeline(Readable.fromWeb(tar as never), child.stdin as never),
    done,
  ]);
  if (unpacked.status === "rejected") throw unpacked.reason;
  if (fed.status === "rejected") throw fed.reason;
}
