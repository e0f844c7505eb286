import { createWriteStream } from "node:fs";
import { mkdir, open, rename, rm, stat } from "node:fs/promises";
import { basename, join, resolve } from "node:path";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { ClocheApiError, type Sandbox } from "@cloche/sdk";
import { baseName, joinRemote, parseCopyPath } from "../copy-path.ts";
import { NotFoundError, UsageError } from "../exit-codes.ts";
import { packLocal, unpackLocal } from "../tar.ts";
import { printJson, write } from "../terminal.ts";
import { act, type Registry, type Run } from "./register.ts";

/** Bytes of a local file that are read at once. */
const pieceBytes = 262_144;

/** cp. */
export function addCopyCommand(registry: Registry): void {
  registry.program
    .command("cp <source> <destination>")
    .description("copy a file or a directory into or out of a sandbox; <sandbox>:/path names the far side")
    .addHelpText(
      "after",
      `
A directory copied to a directory that exists goes into it, else it becomes the destination; SOURCE/. copies what is in it.
- is standard input or output (of a file).

Examples:
  cloche cp ./app.py demo:/root/app.py
  cloche cp ./site demo:/srv/www
  cloche cp demo:/var/log ./logs
  cloche cp demo:/etc/os-release -`,
    )
    .action(
      act(registry, async (run, sourceText: string, destinationText: string) => {
        const source = parseCopyPath(sourceText);
        const destination = parseCopyPath(destinationText);
        if (run.json && destination.path === "-")
          throw new UsageError(
            "with --json standard output is not free for a file; name another destination",
          );
        let target: string;
        if (source.sandbox === undefined && destination.sandbox !== undefined) {
          target = await upload(run, source.path, await run.sandbox(destination.sandbox), destination.path);
        } else if (source.sandbox !== undefined && destination.sandbox === undefined) {
          target = await download(run, await run.sandbox(source.sandbox), source.path, destination.path);
        } else {
          throw new UsageError(
            "one side must be in a sandbox and the other not, as in: cloche cp ./file demo:/root/file",
          );
        }
        if (run.json) await printJson(run.terminal, { source: sourceText, destination: target });
      }),
    );
}

type Kind = "missing" | "file" | "directory";

/** The kind of entry at a path in the sandbox; symlinks are followed. */
async function remoteKind({ files }: Sandbox, path: string, signal: AbortSignal): Promise<Kind> {
  const { exists, entry_type: type } = await files.exists(path, { signal });
  if (!exists) return "missing";
  if (type !== "symlink") return type === "directory" ? "directory" : "file";
  // With `/.` after the path the link is followed.
  const followed = await files.exists(joinRemote(path, "."), { signal }).catch(() => ({ exists: false }));
  return followed.exists ? "directory" : "file";
}

async function localKind(path: string): Promise<Kind> {
  try {
    return (await stat(path)).isDirectory() ? "directory" : "file";
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return "missing";
    throw error;
  }
}

const isContentsOf = (path: string): boolean => path === "." || path.endsWith("/.");

async function upload(run: Run, source: string, sandbox: Sandbox, destination: string): Promise<string> {
  const { signal } = run;
  if (source === "-") {
    await sandbox.files.upload(destination, run.terminal.stdin, { signal });
    return destination;
  }
  const kind = await localKind(source);
  if (kind === "missing") throw new NotFoundError(`there is no file ${source}`);
  const into = (await remoteKind(sandbox, destination, signal)) === "directory" || destination.endsWith("/");
  const target =
    into && !isContentsOf(source) ? joinRemote(destination, basename(resolve(source))) : destination;
  if (kind === "directory") await uploadTar(sandbox, target, packLocal(source, ["."]), signal);
  else await uploadFile(sandbox, source, target, signal);
  return target;
}

async function uploadFile(
  sandbox: Sandbox,
  source: string,
  target: string,
  signal: AbortSignal,
): Promise<void> {
  await using file = await open(source);
  const octal = ((await file.stat()).mode & 0o777).toString(8).padStart(4, "0");
  const content = file.createReadStream({ highWaterMark: pieceBytes, autoClose: false });
  await sandbox.files.upload(target, content, { mode: octal, signal });
}

async function uploadTar(
  sandbox: Sandbox,
  directory: string,
  tar: ReturnType<typeof packLocal>,
  signal: AbortSignal,
): Promise<void> {
  const [sent, packed] = await Promise.allSettled([
    sandbox.files.unpack(directory, tar.stream, { signal }),
    tar.done,
  ]);
  // The sandbox's error comes first: after it tar fails only because its output is no longer read.
  if (sent.status === "rejected") throw sent.reason;
  if (packed.status === "rejected") throw packed.reason;
}

async function download(run: Run, sandbox: Sandbox, source: string, destination: string): Promise<string> {
  const { signal, terminal } = run;
  const kind = await remoteKind(sandbox, source, signal);
  if (kind === "missing") throw new NotFoundError(`there is no file ${source} in sandbox ${sandbox.id}`);
  if (destination === "-") {
    if (kind === "directory") throw new UsageError("a directory cannot go to standard output");
    for await (const chunk of await sandbox.files.readStream(source, { signal }))
      await write(terminal.stdout, chunk);
    return "-";
  }
  const into = (await localKind(destination)) === "directory";
  const target = into && !isContentsOf(source) ? join(destination, baseName(source)) : destination;
  if (kind === "directory") {
    await mkdir(target, { recursive: true });
    await unpackLocal(target, await sandbox.files.pack(source, { signal }));
  } else await downloadFile(sandbox, source, target, signal);
  return target;
}

/** Downloads into a temporary file beside the target first, so that an interrupted copy leaves no partial file. */
async function downloadFile(
  sandbox: Sandbox,
  source: string,
  target: string,
  signal: AbortSignal,
): Promise<void> {
  const body = await sandbox.files.readStream(source, { signal });
  const { permissions } = await sandbox.files.stat(source, { signal });
  const mode = Number.parseInt(permissions, 8) & 0o777;
  const partial = `${target}.cloche-partial`;
  try {
    await pipeline(
      Readable.fromWeb(body as never),
      createWriteStream(partial, { mode: mode === 0 ? 0o600 : mode }),
    );
    await rename(partial, target);
  } catch (error) {
    await rm(partial, { force: true });
    if (error instanceof ClocheApiError) throw error;
    throw new Error(`cannot copy to ${target}: ${(error as Error).message}`, { cause: error });
  }
}
