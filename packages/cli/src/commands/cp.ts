import { createWriteStream } from "node:fs";
import { chmod, chown, lstat, mkdir, open, realpath, rename, rm, stat } from "node:fs/promises";
import { basename, dirname, join, resolve } from "node:path";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { ClocheApiError, type Sandbox } from "@cloche/sdk";
import { baseName, joinRemote, parseCopyPath } from "../copy-path.ts";
import { NotFoundError, UsageError } from "../exit-codes.ts";
import { isDevice, ownerNumbers, writeInto } from "../special-file.ts";
import { packLocal, unpackLocal } from "../tar.ts";
import { printJson, write } from "../terminal.ts";
import { act, type Registry, type Run } from "../register.ts";

/** Bytes of a local file that are read at once. */
const pieceBytes = 262_144;

/** cp. */
export function addCopyCommand(registry: Registry): void {
  registry.program
    .command("cp <source> <destination>")
    .description("copy a file or a directory into or out of a sandbox; <sandbox>:/path names the far side")
    .option(
      "-a, --archive",
      "keep the owners' numbers; else files belong to root in the sandbox, here to you",
    )
    .option("-u, --user <user>", "act with this user's rights in the sandbox; new files belong to the user")
    .addHelpText(
      "after",
      `
A directory copied to a directory that exists goes into it, else it becomes the destination; SOURCE/. copies what is in it.
- is standard input or output (of a file). The folder that is copied into must exist. Devices, FIFOs and links are written into.
Files that change while they are copied are a warning.

Examples:
  cloche cp ./app.py demo:/root/app.py
  cloche cp ./site demo:/srv/www
  cloche cp demo:/var/log ./logs
  cloche cp demo:/etc/os-release -`,
    )
    .action(
      act(registry, async (run, sourceText: string, destinationText: string, options: CopyOptions) => {
        const source = parseCopyPath(sourceText);
        const destination = parseCopyPath(destinationText);
        if (run.json && destination.path === "-")
          throw new UsageError(
            "with --json standard output is not free for a file; name another destination",
          );
        if (options.archive && options.user !== undefined)
          throw new UsageError("--archive keeps owners, --user names one; use one of them");
        let target: string;
        if (source.sandbox === undefined && destination.sandbox !== undefined) {
          const sandbox = await run.sandbox(destination.sandbox);
          target = await upload({ run, sandbox, options }, source.path, destination.path);
        } else if (source.sandbox !== undefined && destination.sandbox === undefined) {
          const sandbox = await run.sandbox(source.sandbox);
          target = await download({ run, sandbox, options }, source.path, destination.path);
        } else {
          throw new UsageError(
            "one side must be in a sandbox and the other not, as in: cloche cp ./file demo:/root/file",
          );
        }
        if (run.json) await printJson(run.terminal, { source: sourceText, destination: target });
      }),
    );
}

interface CopyOptions {
  /** Owners are kept. */
  archive?: true;
  /** Whose rights the copy has in the sandbox, and to whom new files belong. */
  user?: string;
}

interface Copy {
  run: Run;
  sandbox: Sandbox;
  options: CopyOptions;
}

type Kind = "missing" | "file" | "directory";

/** What the owner of a directory needs to fill it. */
const ownerMayFill = 0o700;
const octal = (mode: number): string => (mode & 0o7777).toString(8).padStart(4, "0");

/** The kind of entry at a path in the sandbox; symlinks are followed. */
async function remoteKind({ files }: Sandbox, path: string, signal: AbortSignal): Promise<Kind> {
  const { exists, entry_type: type } = await files.exists(path.replace(/(?<=.)\/+$/, ""), { signal });
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

/** Options of the calls in the sandbox. */
const calls = ({ run, options }: Copy): { signal: AbortSignal; asUser: string | undefined } => ({
  signal: run.signal,
  asUser: options.user,
});

/** As docker says it: the folder of a copy must exist, and a directory cannot replace a file. */
function checkTarget(source: Kind, target: Kind, folder: Kind, path: string): void {
  if (folder !== "directory") throw new NotFoundError(`there is no folder for ${path}; make it first`);
  if (target === "missing" && source === "file" && path.endsWith("/"))
    throw new NotFoundError(`there is no folder ${path}; make it first`);
  if (target === "file" && (source === "directory" || path.endsWith("/")))
    throw new Error(`${path} is a file, not a folder`);
}

async function upload(copy: Copy, source: string, destination: string): Promise<string> {
  const { run, sandbox } = copy;
  const { signal } = run;
  const destinationKind = await remoteKind(sandbox, destination, signal);
  const kind = source === "-" ? "file" : await localKind(source);
  if (kind === "missing") throw new NotFoundError(`there is no file ${source}`);
  checkTarget(kind, destinationKind, await remoteKind(sandbox, dirname(destination), signal), destination);
  const into = destinationKind === "directory" && !isContentsOf(source) && source !== "-";
  const target = into ? joinRemote(destination, basename(resolve(source))) : destination;
  // A path where nothing is needs no look.
  const device =
    kind === "file" && destinationKind !== "missing" && (await isDevice(sandbox, target, calls(copy)));
  if (source === "-") {
    await send(copy, target, run.terminal.stdin, { device });
    return target;
  }
  if (kind === "directory") await uploadDirectory(copy, source, target, destinationKind);
  else await uploadFile(copy, source, target, device);
  return target;
}

/** A directory that is there keeps its mode and owner. A new one has those of the source, from the beginning on for what it keeps private. */
async function uploadDirectory(copy: Copy, source: string, target: string, destination: Kind): Promise<void> {
  const { run, sandbox, options } = copy;
  const isNew = destination === "missing" || (await remoteKind(sandbox, target, run.signal)) === "missing";
  const { mode, uid, gid } = await stat(source);
  const { files } = sandbox;
  if (isNew) {
    await files.mkdir(target, calls(copy));
    await files.chmod(target, octal(mode | ownerMayFill), calls(copy));
  }
  await uploadTar(copy, target, packLocal(source, ["."], options.archive === true));
  if (!isNew) return;
  if (options.archive) await files.chown(target, { user: uid, group: gid }, calls(copy));
  await files.chmod(target, octal(mode), calls(copy));
}

async function uploadFile(copy: Copy, source: string, target: string, device: boolean): Promise<void> {
  await using file = await open(source);
  const { mode, uid, gid } = await file.stat();
  const content = file.createReadStream({ highWaterMark: pieceBytes, autoClose: false });
  await send(copy, target, content, {
    device,
    mode: octal(mode & 0o777),
    ...(copy.options.archive ? { owner: String(uid), group: String(gid) } : {}),
  });
}

/** A device keeps its mode and owner. */
async function send(
  copy: Copy,
  target: string,
  content: AsyncIterable<Uint8Array>,
  { device, ...dress }: { device: boolean; mode?: string; owner?: string; group?: string },
): Promise<void> {
  if (device) await writeInto(copy.sandbox, target, content, calls(copy));
  else await copy.sandbox.files.upload(target, content, { ...dress, ...calls(copy) });
}

async function uploadTar(copy: Copy, directory: string, tar: ReturnType<typeof packLocal>): Promise<void> {
  const [sent, packed] = await Promise.allSettled([
    copy.sandbox.files.unpack(directory, tar.stream, calls(copy)),
    tar.done,
  ]);
  // The sandbox's error comes first: after it tar fails only because its output is no longer read.
  if (sent.status === "rejected") throw sent.reason;
  if (packed.status === "rejected") throw packed.reason;
  for (const warning of packed.value) await write(copy.run.terminal.stderr, `cloche: warning: ${warning}\n`);
}

async function download(copy: Copy, source: string, destination: string): Promise<string> {
  const { run, sandbox } = copy;
  const { signal, terminal } = run;
  const kind = await remoteKind(sandbox, source, signal);
  if (kind === "missing") throw new NotFoundError(`there is no file ${source} in sandbox ${sandbox.id}`);
  if (destination === "-") {
    if (kind === "directory") throw new UsageError("a directory cannot go to standard output");
    for await (const chunk of await sandbox.files.readStream(source, calls(copy)))
      await write(terminal.stdout, chunk);
    return "-";
  }
  const destinationKind = await localKind(destination);
  checkTarget(kind, destinationKind, await localKind(dirname(destination)), destination);
  const into = destinationKind === "directory" && !isContentsOf(source);
  const target = into ? join(destination, baseName(source)) : destination;
  if (kind === "directory") await downloadDirectory(copy, source, target);
  else await downloadFile(copy, source, target);
  return target;
}

/** As an upload does: only a new directory gets the mode and the owner of the source. */
async function downloadDirectory(copy: Copy, source: string, target: string): Promise<void> {
  const { sandbox, options } = copy;
  const isNew = (await localKind(target)) === "missing";
  const { permissions } = await sandbox.files.stat(source, { ...calls(copy), follow: true });
  const mode = Number.parseInt(permissions, 8) & ~process.umask();
  const owner = options.archive ? await ownerNumbers(sandbox, source, calls(copy)) : undefined;
  if (isNew) await mkdir(target, { mode: mode | ownerMayFill });
  await unpackLocal(target, await sandbox.files.pack(source, calls(copy)), options.archive === true);
  if (!isNew) return;
  if (owner !== undefined) await chown(target, ...owner);
  await chmod(target, mode);
}

async function downloadFile(copy: Copy, source: string, target: string): Promise<void> {
  const { permissions } = await copy.sandbox.files.stat(source, { ...calls(copy), follow: true });
  const mode = Number.parseInt(permissions, 8) & 0o777 || 0o600;
  const owner = copy.options.archive ? await ownerNumbers(copy.sandbox, source, calls(copy)) : undefined;
  const body = await copy.sandbox.files.readStream(source, calls(copy));
  const place = await placeOf(target);
  const content = Readable.fromWeb(body as never);
  try {
    if (place.inPlace) await pipeline(content, createWriteStream(place.path));
    else await replaceFile(place.path, mode, content);
    if (owner !== undefined && !place.inPlace) await chown(place.path, ...owner);
  } catch (error) {
    if (error instanceof ClocheApiError) throw error;
    throw new Error(`cannot copy to ${target}: ${(error as Error).message}`, { cause: error });
  }
}

/** Where the content goes: a link's target, and in place for what is no regular file (a device, a FIFO, bash's `>(…)`). */
async function placeOf(target: string): Promise<{ path: string; inPlace: boolean }> {
  const entry = await lstat(target).catch(() => undefined);
  if (entry === undefined) return { path: target, inPlace: false };
  if (!entry.isSymbolicLink()) return { path: target, inPlace: !entry.isFile() };
  const followed = await stat(target).catch(() => undefined);
  if (followed?.isFile() !== true) return { path: target, inPlace: true };
  return { path: await realpath(target), inPlace: false };
}

/** Downloads into a temporary file beside the target first, so that an interrupted copy leaves no partial file. */
async function replaceFile(target: string, mode: number, content: Readable): Promise<void> {
  const partial = `${target}.cloche-partial`;
  try {
    await pipeline(content, createWriteStream(partial, { mode }));
    await rename(partial, target);
  } catch (error) {
    await rm(partial, { force: true });
    throw error;
  }
}
