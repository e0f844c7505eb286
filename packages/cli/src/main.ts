import { connect, findConnection } from "@cloche/sdk/node";
import { exitCodes } from "./exit-codes.ts";
import { run } from "./program.ts";

async function main(): Promise<void> {
  const interrupted = new AbortController();
  // The second Ctrl-C ends us at once.
  process.once("SIGINT", () => interrupted.abort(new Error("interrupted")));
  process.once("SIGTERM", () => interrupted.abort(new Error("terminated")));
  // Started by an older Node (bin/cloche.mjs) that was killed: our sandbox's command must not run on.
  process.on("disconnect", () => process.exit(exitCodes.interrupted));
  process.channel?.unref();
  // A reader that has enough (head, less) is no error.
  process.stdout.on("error", (error: NodeJS.ErrnoException) => process.exit(error.code === "EPIPE" ? 0 : 1));
  let isRead = false;
  const code = await run(process.argv.slice(2), {
    // Opened by those who read it.
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
    connect: async () => connect(findConnection()),
  });
  process.exitCode = code;
  // It may still be open, and nobody reads it any more.
  if (isRead) process.stdin.destroy();
}

void main();
