import type { Readable, Writable } from "node:stream";
import { serveStdio, StdioServerTransport } from "@modelcontextprotocol/server/stdio";
import { createMcpServer, type McpServerOptions } from "./server.ts";

/** Largest message of a client: room for a file of 1 MiB as base64. */
const messageBytes = 4 * 1_048_576;

/**
 * Serves the client that started this process: messages come on `input` and go to `output`, one JSON on each line. When the client closes
 * `input` or `signal` aborts, calls under way are cancelled, which kills their commands, and this resolves.
 */
export async function serveOverStdio(
  options: McpServerOptions & {
    input: Readable;
    output: Writable;
    signal: AbortSignal;
    onError?: (error: Error) => void;
  },
): Promise<void> {
  const { input, output, signal, onError } = options;
  if (signal.aborted) return;
  const ended = new Promise<void>((resolve) => {
    for (const event of ["end", "close", "error"]) input.once(event, () => resolve());
    signal.addEventListener("abort", () => resolve(), { once: true });
  });
  const transport = new StdioServerTransport(input, output, { maxBufferSize: messageBytes });
  const handle = serveStdio(() => createMcpServer(options), {
    transport,
    ...(onError && { onerror: onError }),
  });
  await ended;
  await handle.close();
}
