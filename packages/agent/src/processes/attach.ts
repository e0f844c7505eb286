/**
 * `GET /v1/processes/{id}/attach`: standard input, output and the terminal of a process over one WebSocket, in the channel protocol
 * of Kubernetes (v5.channel.k8s.io). Each binary message begins with the number of its channel. When the client goes away, the process
 * gets no signal and goes on; an exec would be killed (exec/running-execs.ts).
 */
import type { Socket } from "node:net";
import type { Duplex } from "node:stream";
import { ClocheError, limits } from "@cloche/protocol";
import type { UpgradeRoute } from "../http/server.ts";
import { parseJsonObject } from "../http/body.ts";
import { WebSocketConnection } from "../web-socket/connection.ts";
import { WebSocketError } from "../web-socket/frames.ts";
import { acceptWebSocket } from "../web-socket/handshake.ts";
import { goesOut, type OutputTaker, readOutput } from "./output-reader.ts";
import { queryOffset } from "./output-route.ts";
import type { Process } from "./process.ts";
import type { ProcessTable } from "./process-table.ts";
import { readSize } from "./start-request.ts";

export const subprotocol = "v5.channel.k8s.io";
const channels = { stdin: 0, stdout: 1, stderr: 2, status: 3, resize: 4, close: 255 } as const;
const prefix = "/v1/processes/";
const attachPath = /^\/v1\/processes\/([^/]+)\/attach$/;

/** Paths whose open connections are no activity: an attached but unused terminal does not keep a sandbox awake. */
export const isAttachPath = (path: string): boolean => attachPath.test(path);

export function processAttach(table: ProcessTable, onActivity: () => void): UpgradeRoute {
  return {
    prefix,
    handle: async (exchange, socket, head) => {
      const id = attachPath.exec(exchange.path)?.[1];
      if (id === undefined) throw new ClocheError("not_found", "nothing to upgrade to at this path");
      const process = table.get(id);
      const answer = acceptWebSocket(exchange.request, subprotocol, exchange.requestId);
      const from = {
        stdout: queryOffset(exchange, "after_stdout") ?? 0,
        stderr: queryOffset(exchange, "after_stderr") ?? 0,
      };
      const release = process.admitReader();
      socket.once("close", release);
      exchange.response.detachSocket(socket as Socket);
      socket.write(answer);
      await attach(process, socket, head, from, onActivity);
    },
  };
}

async function attach(
  process: Process,
  socket: Duplex,
  head: Buffer,
  from: { stdout: number; stderr: number },
  onActivity: () => void,
): Promise<void> {
  const connection = new WebSocketConnection(socket, head, limits.processMessageBytes, {
    onMessage: (data, kind) => {
      onActivity();
      if (kind === "text")
        throw new WebSocketError(1003, "messages must be binary, their first byte the channel");
      return onMessage(process, data);
    },
  });
  const send = (channel: number, data: Buffer): boolean | Promise<boolean> => {
    if (connection.over.aborted) return false;
    if (connection.send(channel, data)) return true;
    return goesOut(socket).then((out) => {
      // A close frame cannot reach a client that does not read, because unread data is in front of it.
      if (!out) socket.destroy();
      return out;
    });
  };
  const taker: OutputTaker = {
    data: (stream, _offset, data) => send(channels[stream], data),
    gap: (stream, from, to) => send(channels.status, json({ gap: { stream, from, to } })),
  };
  const { stdout, stderr } = process.spec;
  const streams = [
    { name: "stdout" as const, log: stdout, offset: from.stdout },
    { name: "stderr" as const, log: stderr, offset: from.stderr },
  ];
  if (!(await readOutput(streams, taker, connection.over, true))) return;
  // The logs end a moment before the record has the exit code.
  await process.finished;
  await send(channels.status, json(process.info()));
  connection.close();
}

const json = (value: unknown): Buffer => Buffer.from(JSON.stringify(value));

function onMessage(process: Process, data: Buffer): void | Promise<void> {
  const channel = data[0];
  const payload = data.subarray(1);
  if (channel === undefined) throw new WebSocketError(1008, "a message must begin with its channel");
  if (channel === channels.stdin) return writeStdin(process, payload);
  if (channel === channels.resize) return resize(process, payload);
  if (channel === channels.close) return endChannel(process, payload);
  throw new WebSocketError(1008, `channel ${channel} is not one that a client writes to`);
}

/** Resolves when there is room for more. Data for a process that has just ended is dropped; its end is sent soon. */
function writeStdin(process: Process, data: Buffer): void | Promise<void> {
  if (data.length === 0 || process.hasEnded) return undefined;
  return refusing(() => process.write(data));
}

function resize(process: Process, payload: Buffer): void | Promise<void> {
  if (process.hasEnded) return undefined;
  return refusing(() => {
    const { Width: cols, Height: rows } = parseJsonObject(payload.toString("utf8"));
    process.resize(readSize({ cols, rows }, ""));
  });
}

function endChannel(process: Process, payload: Buffer): void | Promise<void> {
  if (payload.length !== 1)
    throw new WebSocketError(1008, "255 must be followed by the number of one channel");
  // Only standard input can be closed; a close of another channel is ignored.
  if (payload[0] !== channels.stdin || process.hasEnded) return undefined;
  return refusing(() => process.endStdin());
}

/** An error that the routes would answer with a 4xx closes the attached connection, with the same message. */
function refusing(work: () => void | Promise<void>): void | Promise<void> {
  const refused = (error: unknown): never => {
    if (error instanceof ClocheError) throw new WebSocketError(1008, error.message);
    throw error;
  };
  try {
    return work()?.catch(refused);
  } catch (error) {
    return refused(error);
  }
}
