import { connect, findConnection } from "@cloche/sdk/node";
import { exitCodes } from "./exit-codes.ts";
import { run } from "./program.ts";

const interrupted = new AbortController();
const { argv, env, stdin, stdout, stderr } = process;
// The second Ctrl-C ends us at once.
process.once("SIGINT", () => interrupted.abort(new Error("interrupted")));
process.once("SIGTERM", () => interrupted.abort(new Error("terminated")));
// Started by an older Node (bin/cloche.mjs) that was killed: our sandbox's command must not run on.
process.on("disconnect", () => process.exit(exitCodes.interrupted));
process.channel?.unref();
// A reader that has enough (head, less) is no error.
stdout.on("error", (error: NodeJS.ErrnoException) => process.exit(error.code === "EPIPE" ? 0 : 1));

const code = await run(argv.slice(2), {
  stdin,
  stdout,
  stderr,
  env,
  signal: interrupted.signal,
  connect: async () => connect(findConnection(env)),
});
process.exitCode = code;
// Standard input may still be open, and nobody reads it any more.
stdin.destroy();
