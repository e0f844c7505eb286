import { portNumber } from "../options.ts";
import { printJson, printLines } from "../terminal.ts";
import { act, type Registry } from "../register.ts";

/** open. */
export function addOpenCommand(registry: Registry): void {
  registry.program
    .command("open <sandbox> <port>")
    .description(
      "print a link that opens a port of the sandbox in a browser, good for one use within a minute",
    )
    .option("--path <path>", "where the link leads", "/")
    .addHelpText("after", "\nExample:\n  cloche open demo 8080")
    .action(
      act(registry, async (run, nameOrId: string, port: string, options: { path: string }) => {
        const sandbox = await run.sandbox(nameOrId);
        const link = await sandbox.portLink(portNumber(port), { path: options.path, signal: run.signal });
        if (run.json) return printJson(run.terminal, link);
        return printLines(run.terminal, link.url);
      }),
    );
}
