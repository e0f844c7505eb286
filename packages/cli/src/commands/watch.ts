import { printJsonLine, printLines, printNotice } from "../terminal.ts";
import { act, type Registry, type Run } from "../register.ts";

/** watch. */
export function addWatchCommand(registry: Registry): void {
  registry.program
    .command("watch <sandbox> <path>")
    .description(
      "tell each change of a file, or of a directory and its entries, until Ctrl-C or its deletion",
    )
    .option("-r, --recursive", "all below the directory, too")
    .option("-u, --user <user>", "with that user's rights; default root")
    .addHelpText(
      "after",
      `
A line is what happened and the path: created, modified, deleted, renamed (with where it was), attributes; overflow where some
were lost. With --json a line is an object.

Examples:
  cloche watch -r demo /srv
  cloche --json watch demo /root/out | jq -r 'select(.type == "created").path'`,
    )
    .action(act(registry, watch));
}

async function watch(
  run: Run,
  nameOrId: string,
  path: string,
  options: { recursive?: boolean; user?: string },
): Promise<void> {
  const { signal, terminal, json } = run;
  const { recursive = false, user } = options;
  const sandbox = await run.sandbox(nameOrId);
  await using changes = await sandbox.files.watch(path, { recursive, asUser: user, signal });
  // Where the lines are read by a program it must know from when on.
  printNotice(terminal, `watching ${path}`);
  for await (const change of changes) {
    const { type, path: changed, from } = change;
    if (json) await printJsonLine(terminal, change);
    else await printLines(terminal, `${type.padEnd(10)} ${from === undefined ? "" : `${from} → `}${changed}`);
  }
}
