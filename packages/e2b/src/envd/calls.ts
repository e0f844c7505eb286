/** The calls of envd's two Connect services, by name. */
import type { IncomingMessage, ServerResponse } from "node:http";
import { type Hold, readBody } from "@cloche/base";
import { limits } from "@cloche/protocol";
import { E2bError } from "../e2b-error.ts";
import { answerJson, errorHeaders, type Fields, headerOf, signalOf } from "../http.ts";
import type { OpenSandbox } from "./sandboxes.ts";
import { MessageStream, parseMessage, readMessage, readMessages, streamType } from "./connect-stream.ts";
import * as filesystem from "./filesystem-service.ts";
import * as processes from "./process-service.ts";

const unaryType = "application/json";
const keepAliveSeconds = 90;

interface Call {
  sandbox: OpenSandbox;
  request: IncomingMessage;
  response: ServerResponse;
  /** The user in the Authorization header; empty: the default. */
  user: string;
}
type Unary = (sandbox: OpenSandbox, message: Fields, user: string) => Promise<Fields>;
type Streaming = (call: Call, stream: MessageStream) => Promise<void>;

const processAlive = { event: { keepalive: {} } };
const asUser =
  (
    act: (
      sandbox: OpenSandbox,
      message: Fields,
      account: Awaited<ReturnType<OpenSandbox["accounts"]["find"]>>,
    ) => Promise<Fields>,
  ): Unary =>
  async (sandbox, message, user) =>
    act(sandbox, message, await sandbox.accounts.find(user));

const unary: Record<string, Unary> = {
  "process.Process/List": processes.list,
  "process.Process/SendInput": processes.sendInput,
  "process.Process/CloseStdin": processes.closeStdin,
  "process.Process/SendSignal": processes.sendSignal,
  "process.Process/Update": processes.update,
  "filesystem.Filesystem/Stat": asUser(filesystem.stat),
  "filesystem.Filesystem/MakeDir": asUser(filesystem.makeDir),
  "filesystem.Filesystem/Move": asUser(filesystem.move),
  "filesystem.Filesystem/ListDir": asUser(filesystem.listDir),
  "filesystem.Filesystem/Remove": asUser(filesystem.remove),
  "filesystem.Filesystem/CreateWatcher": asUser(filesystem.createWatcher),
  "filesystem.Filesystem/GetWatcherEvents": filesystem.getWatcherEvents,
  "filesystem.Filesystem/RemoveWatcher": filesystem.removeWatcher,
};

const streaming: Record<string, Streaming> = {
  "process.Process/Start": async ({ sandbox, request, response, user }, stream) => {
    stream.keepAlive(processAlive, keepAliveMs(request));
    const context = { user, timeoutMs: timeoutOf(request), response };
    await processes.start(sandbox, await messageOf(sandbox, request, response), stream, context);
  },
  "process.Process/Connect": async ({ sandbox, request, response }, stream) => {
    stream.keepAlive(processAlive, keepAliveMs(request));
    await processes.connect(sandbox, await messageOf(sandbox, request, response), stream, response);
  },
  "process.Process/StreamInput": async ({ sandbox, request, response }, stream) => {
    const messages = readMessages(request, () => sandbox.holdBody(response));
    await stream.send(await processes.streamInput(sandbox, messages));
  },
  "filesystem.Filesystem/WatchDir": async ({ sandbox, request, response, user }, stream) => {
    stream.keepAlive({ keepalive: {} }, keepAliveMs(request));
    const account = await sandbox.accounts.find(user);
    const message = await messageOf(sandbox, request, response);
    await filesystem.watchDir(sandbox, message, account, stream, signalOf(response));
  },
};

const messageOf = (
  sandbox: OpenSandbox,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<Fields> => readMessage(request, () => sandbox.holdBody(response));

export const isCall = (path: string): boolean => /^\/(process\.Process|filesystem\.Filesystem)\//.test(path);

/** Answers the call `<service>/<method>`; throws errors. */
export async function call(
  name: string,
  sandbox: OpenSandbox,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const user = basicUser(request);
  const stream = streaming[name];
  if (stream !== undefined) {
    demand(request, streamType);
    const messages = new MessageStream(response);
    await stream({ sandbox, request, response, user }, messages);
    return messages.end();
  }
  const act = unary[name];
  if (act === undefined) throw new E2bError("unimplemented", `there is no call ${name}`);
  demand(request, unaryType);
  const checkCaller = (): Promise<Hold> => sandbox.holdBody(response);
  const message = parseMessage(await readBody(request, { maxBytes: limits.messageBytes, checkCaller }));
  answerJson(response, 200, await act(sandbox, message, user));
}

/** Answers an error in Connect's format; a stream sends it in its last message. */
export function answerCallError(request: IncomingMessage, response: ServerResponse, error: E2bError): void {
  if (headerOf(request, "content-type")?.startsWith(streamType)) new MessageStream(response).end(error);
  else answerJson(response, error.status, { code: error.code, message: error.message }, errorHeaders(error));
}

function demand(request: IncomingMessage, type: string): void {
  const [sent] = (headerOf(request, "content-type") ?? "").split(";", 1);
  if (sent !== type)
    throw new E2bError("unimplemented", `content-type is ${sent}; it must be ${type}`, { status: 415 });
}

/** The Unix user of `Authorization: Basic base64("<user>:")`. */
function basicUser(request: IncomingMessage): string {
  const [, encoded] = /^basic +([\w+/=-]+) *$/i.exec(headerOf(request, "authorization") ?? "") ?? [];
  return encoded === undefined
    ? ""
    : (Buffer.from(encoded, "base64").toString("utf8").split(":", 1)[0] ?? "");
}

function timeoutOf(request: IncomingMessage): number | undefined {
  const ms = Number(headerOf(request, "connect-timeout-ms"));
  return Number.isSafeInteger(ms) && ms > 0 ? ms : undefined;
}

function keepAliveMs(request: IncomingMessage): number {
  const seconds = Number(headerOf(request, "keepalive-ping-interval"));
  return (seconds >= 1 && seconds <= 3_600 ? seconds : keepAliveSeconds) * 1_000;
}
