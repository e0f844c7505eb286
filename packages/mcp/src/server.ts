/**
 * The MCP server for one client: all tools, resources and prompts, bound to one team's client of the public contract. It has no state: its
 * answers come from the gateway and the data plane.
 */
import type { Cloche } from "@cloche/sdk";
import { McpServer } from "@modelcontextprotocol/server";
import { addPrompts } from "./prompts.ts";
import { addResources } from "./resources.ts";
import { checkpointTools } from "./tools/checkpoints.ts";
import { exec } from "./tools/exec.ts";
import { fileTools } from "./tools/files.ts";
import { forkSandbox } from "./tools/fork.ts";
import { openPort } from "./tools/ports.ts";
import { processTools } from "./tools/processes.ts";
import { sandboxTools } from "./tools/sandboxes.ts";
import { searchFiles } from "./tools/search.ts";
import { serviceTools } from "./tools/services.ts";
import { storeTools } from "./tools/store.ts";
import type { Tool } from "./tool.ts";

export interface McpServerOptions {
  /** Client of the team whose sandboxes may be used. */
  cloche: Cloche;
  /** The server's version, `0.1.0`. */
  version: string;
}

const tools: readonly Tool[] = [
  ...sandboxTools,
  forkSandbox,
  exec,
  ...processTools,
  ...fileTools,
  searchFiles,
  ...checkpointTools,
  openPort,
  ...serviceTools,
  ...storeTools,
];

/** Instructions for the model, sent at the beginning. */
const instructions = `Cloche makes isolated Linux machines (sandboxes) in which you run commands and keep files.
Make one with create_sandbox and pass its id to the other tools. exec runs a command to its end; start_process and set_service
run servers. Files, installed packages and background programs stay between calls.
Before a risky step: create_checkpoint, then restore_checkpoint where it went wrong (disk only).
To try several ways at once: fork_sandbox with a count, which clones files and running programs, then one way in each fork.
Delete sandboxes that you made and no longer need. Code in a sandbox cannot reach this server or other sandboxes.`;

/** The lists of tools, resources and prompts do not change during a connection. */
const capabilities = {
  tools: { listChanged: false },
  resources: { listChanged: false },
  prompts: { listChanged: false },
};

/** Makes a server for one connection. Connect it to a transport, or pass it to the MCP SDK's entry points. */
export function createMcpServer({ cloche, version }: McpServerOptions): McpServer {
  const server = new McpServer(
    { name: "cloche", title: "Cloche sandboxes", version },
    { instructions, capabilities },
  );
  for (const add of tools) add(server, cloche);
  addResources(server, cloche);
  addPrompts(server, cloche);
  return server;
}
