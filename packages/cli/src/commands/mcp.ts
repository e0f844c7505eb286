import type { Registry } from "../register.ts";
import { printNotice } from "../terminal.ts";
import { act, type Run } from "../register.ts";

/** mcp. */
export function addMcpCommand(registry: Registry): void {
  registry.program
    .command("mcp")
    .description("serve MCP on standard input and output, for a client that starts this command")
    .addHelpText(
      "after",
      `
Tools and resources for a model: sandboxes, commands, processes, files, forks, checkpoints, ports, services, store. It ends when
the client closes standard input; calls under way are cancelled then. docs/mcp.md says how to set it up in a client.

Example, as a client's configuration:
  {"mcpServers": {"cloche": {"command": "cloche", "args": ["mcp"]}}}`,
    )
    .action(act(registry, (run) => serve(run, registry.program.version() ?? "")));
}

async function serve({ cloche, terminal, signal }: Run, version: string): Promise<void> {
  // Loaded only by this command: the protocol's library loads more slowly than all other commands.
  const { serveOverStdio } = await import("@cloche/mcp");
  const onError = (error: Error): void => printNotice(terminal, error.message);
  const { stdin: input, stdout: output } = terminal;
  await serveOverStdio({ cloche, version, input, output, signal, onError });
}
