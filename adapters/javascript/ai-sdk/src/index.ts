/** A Cloche sandbox as the sandbox of the Vercel AI SDK: `experimental_sandbox: clocheSandbox(await cloche.create())`. */
import { posix } from "node:path";
import type { Experimental_SandboxSession, Experimental_SandboxProcess } from "ai";
import { ClocheApiError, type ExecBytesEvent, type Sandbox } from "@cloche/sdk";

type Session = Experimental_SandboxSession;
type Process = Experimental_SandboxProcess;
type SpawnOptions = Parameters<Session["spawn"]>[0];

export interface ClocheSandboxOptions {
  /** Where commands start, and what relative paths are below. Default `/root`, or the home of `user`. */
  directory?: string;
  /** The Unix user of commands and files. Default root. */
  user?: string;
  /** What the model is told besides. */
  description?: string;
}

/** Wraps a sandbox that is there; deleting it is its owner's. */
export function clocheSandbox(sandbox: Sandbox, options: ClocheSandboxOptions = {}): Session {
  const { user } = options;
  const directory = options.directory ?? (user === undefined || user === "root" ? "/root" : `/home/${user}`);
  const at = (path: string): string => posix.resolve(directory, path);
  const how = (abortSignal: AbortSignal | undefined) => ({
    ...(user !== undefined && { asUser: user }),
    ...(abortSignal !== undefined && { signal: abortSignal }),
  });
  const command = ({ command: line, workingDirectory = ".", env, abortSignal }: SpawnOptions) => ({
    cmd: ["bash", "-c", line],
    options: {
      dir: at(workingDirectory),
      ...(user !== undefined && { user }),
      ...(env !== undefined && { env }),
      ...(abortSignal !== undefined && { signal: abortSignal }),
    },
  });
  const { files } = sandbox;

  return {
    description:
      options.description ??
      `An isolated Linux machine (Debian) with bash, Python and git. Commands start in ${directory}, as ${user ?? "root"}.`,

    readFile: ({ path, abortSignal }) => unlessMissing(files.readStream(at(path), how(abortSignal))),
    readBinaryFile: ({ path, abortSignal }) => unlessMissing(files.read(at(path), how(abortSignal))),
    async readTextFile({ path, encoding = "utf-8", startLine = 1, endLine, abortSignal }) {
      const bytes = await unlessMissing(files.read(at(path), how(abortSignal)));
      if (bytes === null) return null;
      const text = new TextDecoder(encoding).decode(bytes);
      if (startLine === 1 && endLine === undefined) return text;
      return text
        .split(/(?<=\n)/)
        .slice(startLine - 1, endLine)
        .join("");
    },
    async writeFile({ path, content, abortSignal }) {
      await files.upload(at(path), content, how(abortSignal));
    },
    async writeBinaryFile({ path, content, abortSignal }) {
      await files.upload(at(path), content as Uint8Array<ArrayBuffer>, how(abortSignal));
    },
    async writeTextFile({ path, content, encoding = "utf-8", abortSignal }) {
      if (!/^utf-?8$/i.test(encoding)) throw new TypeError(`text is written as UTF-8, not as ${encoding}`);
      await files.upload(at(path), content, how(abortSignal));
    },
    async stat({ path, abortSignal }) {
      const entry = await unlessMissing(files.stat(at(path), { follow: true, ...how(abortSignal) }));
      if (entry === null) return null;
      return { type: entry.is_dir ? "directory" : "file", size: entry.size };
    },
    async listDirectory({ path, abortSignal }) {
      const listed = await unlessMissing(files.list(at(path), how(abortSignal)));
      return (
        listed?.entries.map((entry) => {
          const { name, is_dir, symlink_target } = entry;
          return { name, type: symlink_target !== "" ? "symlink" : is_dir ? "directory" : "file" };
        }) ?? null
      );
    },
    async deleteFile({ path, abortSignal }) {
      const entry = await unlessMissing(files.stat(at(path), how(abortSignal)));
      if (entry === null) return false;
      if (entry.is_dir) throw new TypeError(`${path} is a directory`);
      return (await unlessMissing(files.delete(at(path), how(abortSignal)))) !== null;
    },

    async run(options) {
      const { cmd, options: fields } = command(options);
      const { exit_code: exitCode, stdout, stderr } = await sandbox.exec(cmd, fields);
      return { exitCode, stdout, stderr };
    },
    spawn: (async (options: SpawnOptions) => {
      const { cmd, options: fields } = command(options);
      const over = new AbortController();
      const signal = options.abortSignal ? AbortSignal.any([options.abortSignal, over.signal]) : over.signal;
      const input = options.stdin === true ? new TransformStream<Uint8Array, Uint8Array>() : undefined;
      const stdin = input === undefined ? {} : { stdin: input.readable };
      const process = spawned(sandbox.execStreamBytes(cmd, { ...fields, ...stdin, signal }), over);
      return input === undefined ? process : { ...process, stdin: input.writable };
    }) as Session["spawn"],
  };
}

const killedCode = 137;

/** A command lives as long as its stream of events: to end that kills it. Output waits for its reader in memory. */
function spawned(events: AsyncIterable<ExecBytesEvent>, over: AbortController): Process {
  const controllers: Partial<Record<"stdout" | "stderr", ReadableStreamDefaultController<Uint8Array>>> = {};
  const streamOf = (name: "stdout" | "stderr"): ReadableStream<Uint8Array> =>
    new ReadableStream({ start: (controller) => void (controllers[name] = controller) });
  const [stdout, stderr] = [streamOf("stdout"), streamOf("stderr")];
  const killed = new Error("the process was killed");
  const follow = async (): Promise<{ exitCode: number }> => {
    for await (const event of events) {
      if (event.type === "exit") return { exitCode: event.exit_code };
      controllers[event.type]?.enqueue(event.data);
    }
    throw new Error("the process did not end");
  };
  const ended = follow().catch((error: unknown) => {
    if (error === killed) return { exitCode: killedCode };
    throw error;
  });
  const close = (): void => {
    for (const controller of Object.values(controllers)) controller.close();
  };
  ended.then(close, close);
  return {
    stdout,
    stderr,
    wait: () => ended,
    async kill() {
      over.abort(killed);
      await ended.catch(() => undefined);
    },
  };
}

/** Null where there is no such file. */
async function unlessMissing<T>(call: Promise<T>): Promise<T | null> {
  try {
    return await call;
  } catch (error) {
    if (error instanceof ClocheApiError && error.code === "not_found") return null;
    throw error;
  }
}
