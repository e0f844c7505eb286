/**
 * Resources, which a client attaches to a conversation without a tool call. All are below `cloche://<sandbox id>`; paths are
 * percent-encoded as in any URL.
 */
import { ClocheApiError, type Cloche, type EntryInfo } from "@cloche/sdk";
import {
  type McpServer,
  ProtocolError,
  ProtocolErrorCode,
  type ReadResourceResult,
  ResourceNotFoundError,
  ResourceTemplate,
  type ServerContext,
} from "@modelcontextprotocol/server";
import { errorText, ToolError } from "./errors.ts";
import { findSandbox } from "./find-sandbox.ts";
import { mcpLimits } from "./limits.ts";
import { readBounded } from "./read-bounded.ts";
import { sandboxIds } from "./sandbox-ids.ts";
import { recordOf } from "./tools/sandbox-record.ts";
import { textOf } from "./utf8.ts";

interface Args {
  name: string;
  template: string;
  title: string;
  description: string;
  mimeType?: string;
  /** With the variables of the template, percent-decoded. */
  read(names: Record<string, string>, signal: AbortSignal): Promise<Contents>;
}
type Contents = { text: string; mimeType: string } | { blob: string; mimeType: string };

export function addResources(server: McpServer, cloche: Cloche): void {
  for (const one of [
    sandboxResource(cloche),
    fileResource(cloche),
    outputResource(cloche),
    logResource(cloche),
  ]) {
    const { name, template, read, ...metadata } = one;
    const list = name === "sandbox" ? () => listed(cloche) : undefined;
    const complete = { sandbox: (begun: string) => sandboxIds(cloche, begun) };
    server.registerResource(
      name,
      new ResourceTemplate(template, { list, complete }),
      metadata,
      (uri, variables, context) => answered(uri, variables, context, read),
    );
  }
}

/** The team's sandboxes, as a list of resources. */
async function listed(
  cloche: Cloche,
): Promise<{ resources: { uri: string; name: string; mimeType: string }[] }> {
  const { sandboxes } = await cloche.gateway.listSandboxes({ page_size: mcpLimits.sandboxesListed });
  const resources = sandboxes.map(({ id, name }) => ({
    uri: `cloche://${id}`,
    name,
    mimeType: "application/json",
  }));
  return { resources };
}

async function answered(
  uri: URL,
  variables: Record<string, string | string[]>,
  context: ServerContext,
  read: Args["read"],
): Promise<ReadResourceResult> {
  try {
    const names = Object.fromEntries(
      Object.entries(variables).map(([name, value]) => [name, decodeURIComponent(String(value))]),
    );
    const contents = await read(names, context.mcpReq.signal);
    return { contents: [{ uri: uri.href, ...contents }] };
  } catch (error) {
    context.mcpReq.signal.throwIfAborted();
    if (error instanceof ProtocolError) throw error;
    const isGone = error instanceof ClocheApiError && error.code === "not_found";
    if (isGone || (error instanceof ToolError && error.message.startsWith("not_found")))
      throw new ResourceNotFoundError(uri.href);
    const text = error instanceof URIError ? `${uri.href} is not percent-encoded UTF-8` : errorText(error);
    if (text === undefined) throw error;
    throw new ProtocolError(ProtocolErrorCode.InvalidParams, text);
  }
}

const sandboxResource = (cloche: Cloche): Args => ({
  name: "sandbox",
  template: "cloche://{sandbox}",
  title: "A sandbox",
  description: "State, size and expiry of a sandbox, as JSON.",
  mimeType: "application/json",
  async read({ sandbox = "" }, signal) {
    const { info } = await findSandbox(cloche, sandbox, signal);
    return { text: JSON.stringify(recordOf(info), null, 2), mimeType: "application/json" };
  },
});

const fileResource = (cloche: Cloche): Args => ({
  name: "file",
  template: "cloche://{sandbox}/files/{+path}",
  title: "A file of a sandbox",
  description: `A file of at most ${mcpLimits.resourceBytes} bytes: cloche://sbx-…/files/root/app/main.py is /root/app/main.py.`,
  async read({ sandbox: id = "", path: relative = "" }, signal) {
    const path = `/${relative}`;
    const sandbox = await findSandbox(cloche, id, signal);
    const query = { path, follow: true };
    const { size, is_dir } = await sandbox.dataPlane.json<EntryInfo>("GET", "/v1/files/stat", {
      query,
      signal,
    });
    if (is_dir) throw invalid(`${path} is a directory; the tool list_files lists it`);
    const { bytes, more } = await readBounded(
      await sandbox.files.readStream(path, { signal }),
      mcpLimits.resourceBytes,
    );
    if (more)
      throw invalid(
        `${path} has ${size} bytes, more than ${mcpLimits.resourceBytes}; the tool read_file reads it in parts`,
      );
    const piece = textOf(bytes);
    return piece !== undefined && piece.to - piece.from === bytes.length
      ? { text: piece.text, mimeType: "text/plain" }
      : { blob: Buffer.from(bytes).toString("base64"), mimeType: "application/octet-stream" };
  },
});

const outputResource = (cloche: Cloche): Args => ({
  name: "process-output",
  template: "cloche://{sandbox}/processes/{process}/output",
  title: "Output of a process",
  description: `What a process has written to standard output, the newest ${mcpLimits.resourceBytes} bytes.`,
  mimeType: "text/plain",
  async read({ sandbox: id = "", process = "" }, signal) {
    const sandbox = await findSandbox(cloche, id, signal);
    const { info } = await sandbox.processes.get(process, { signal });
    const after = Math.max(0, info.stdout_bytes - mcpLimits.resourceBytes);
    const path = `/v1/processes/${encodeURIComponent(process)}/output`;
    const response = await sandbox.dataPlane.request("GET", path, { query: { after }, signal });
    const start = Number(response.headers.get("x-output-start") ?? after);
    const { bytes } = await readBounded(response.body ?? new Blob([]).stream(), mcpLimits.resourceBytes);
    return { text: withLost(start, Buffer.from(bytes).toString("utf8")), mimeType: "text/plain" };
  },
});

const logResource = (cloche: Cloche): Args => ({
  name: "service-logs",
  template: "cloche://{sandbox}/services/{service}/logs",
  title: "Log of a service",
  description: "The last 1,000 lines that a service has written, stdout and stderr.",
  mimeType: "text/plain",
  async read({ sandbox: id = "", service = "" }, signal) {
    const sandbox = await findSandbox(cloche, id, signal);
    const text = await sandbox.services.logs(service, { tail: 1_000, signal });
    const bytes = Buffer.from(text);
    const lost = Math.max(0, bytes.length - mcpLimits.resourceBytes);
    return { text: withLost(lost, bytes.subarray(lost).toString("utf8")), mimeType: "text/plain" };
  },
});

const withLost = (bytes: number, text: string): string =>
  bytes === 0 ? text : `[… ${bytes} bytes before are left out …]\n${text}`;

const invalid = (message: string): ProtocolError =>
  new ProtocolError(ProtocolErrorCode.InvalidParams, message);
