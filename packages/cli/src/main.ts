import { connect, findConnection } from "@cloche/sdk/node";
import { connectionOf, contextInUse } from "./contexts.ts";
import { exitCodes } from "./exit-codes.ts";
import { run } from "./program.ts";

async function main(): Promise<void> {
  const interrupted = new AbortController();
  // The second Ctrl-C ends this process at once.
  process.once("SIGINT", () => interrupted.abort(new Error("interrupted")));
  process.once("SIGTERM", () => interrupted.abort(new Error("terminated")));
  // The parent (bin/cloche.mjs, run by an older Node) was killed: the command in the sandbox must not run on.
  process.on("disconnect", () => process.exit(exitCodes.interrupted));
  process.channel?.unref();
  // A reader that closes the pipe early (head, less) is no error.
  process.stdout.on("error", (error: NodeJS.ErrnoException) => process.exit(error.code === "EPIPE" ? 0 : 1));
  let isRead = false;
  const code = await run(process.argv.slice(2), {
    // Opened on first use.
    get stdin() {
      isRead = true;
      return process.stdin;
    },
    stdout: process.stdout,
    get stderr() {
      return process.stderr;
    },
    env: process.env,
    signal: interrupted.signal,
    connect: async (named) => {
      const inUse = named === undefined ? contextInUse(process.env) : undefined;
      return connect(
        findConnection(
          named ? {} : process.env,
          named ?? (inUse && connectionOf(inUse.context, process.env)),
        ),
      );
    },
  });
  process.exitCode = code;
  // Standard input may still be open, which would keep the process running.
  if (isRead) process.stdin.destroy();
}

void main();
