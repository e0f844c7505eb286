/** `/v1/processes` (docs/processes.md). */
import {
  ClocheError,
  limits,
  type OkResponse,
  type ProcessInfo,
  type ProcessList,
  type ProcessStdinResponse,
} from "@cloche/protocol";
import { departure } from "../http/departure.ts";
import type { Exchange } from "../http/exchange.ts";
import { optionalInteger } from "../http/fields.ts";
import type { Route } from "../http/router.ts";
import type { Guest } from "../spawner/index.ts";
import { sendOutput } from "./output-route.ts";
import type { Process } from "./process.ts";
import type { ProcessTable } from "./process-table.ts";
import { readSignal } from "./signals.ts";
import { readSize, readStartRequest } from "./start-request.ts";

export interface ProcessRouteParts {
  /** The users' guest; throws `unavailable` without a disk. */
  guest(): Guest;
  /** The sandbox's variables; those of a request override them. */
  env(): Readonly<Record<string, string>>;
  table: ProcessTable;
}

export function processRoutes({ guest, env, table }: ProcessRouteParts): Route[] {
  const of =
    <Answer>(answer: (process: Process, exchange: Exchange) => Answer) =>
    (exchange: Exchange): Answer =>
      answer(table.get(exchange.params["id"] ?? ""), exchange);
  const path = "/v1/processes/:id";
  return [
    {
      method: "POST",
      path: "/v1/processes",
      handle: async (exchange) => {
        const request = readStartRequest(await exchange.readJson(), env());
        const process = await table.start(guest(), request);
        exchange.sendJson(201, process.info());
      },
    },
    { method: "GET", path: "/v1/processes", handle: (exchange) => list(table, exchange) },
    { method: "GET", path, handle: of(withPid) },
    {
      method: "DELETE",
      path,
      handle: of(async (process): Promise<ProcessInfo> => {
        await table.delete(process);
        return process.info();
      }),
    },
    { method: "POST", path: `${path}/signal`, handle: of(signal) },
    { method: "POST", path: `${path}/resize`, handle: of(resize) },
    { method: "POST", path: `${path}/stdin`, handle: of(writeStdin) },
    {
      method: "DELETE",
      path: `${path}/stdin`,
      handle: of((process): OkResponse => {
        process.endStdin();
        return { ok: true };
      }),
    },
    { method: "POST", path: `${path}/wait`, handle: of(wait) },
    { method: "GET", path: `${path}/output`, handle: of(sendOutput) },
    {
      method: "GET",
      path: `${path}/attach`,
      handle: of(() => {
        throw new ClocheError(
          "invalid_argument",
          "attach is a WebSocket: the request must have Upgrade: websocket",
        );
      }),
    },
  ];
}

async function withPid(process: Process): Promise<ProcessInfo> {
  await process.findPid();
  return process.info();
}

async function list(table: ProcessTable, exchange: Exchange): Promise<ProcessList> {
  const status = exchange.query.get("status");
  if (status !== undefined && status !== "running" && status !== "exited") {
    throw new ClocheError("invalid_argument", "status must be running or exited");
  }
  const processes = await Promise.all(table.list().map(withPid));
  return { processes: processes.filter((info) => status === undefined || info.status === status) };
}

async function signal(process: Process, exchange: Exchange): Promise<ProcessInfo> {
  const body = await exchange.readJson();
  process.signal(readSignal(body["signal"]));
  return process.info();
}

async function resize(process: Process, exchange: Exchange): Promise<ProcessInfo> {
  process.resize(readSize(await exchange.readJson(), ""));
  return process.info();
}

/** Streams the body to standard input, at the pace of the process. */
async function writeStdin(process: Process, exchange: Exchange): Promise<ProcessStdinResponse> {
  process.checkStdin();
  let bytes = 0;
  try {
    for await (const chunk of exchange.openBody() as AsyncIterable<Buffer>) {
      await process.write(chunk);
      bytes += chunk.length;
    }
  } catch (error) {
    if (error instanceof ClocheError) throw error;
    throw new ClocheError("canceled", "the client went away before its body was complete", { cause: error });
  }
  return { ok: true, bytes };
}

async function wait(process: Process, exchange: Exchange): Promise<ProcessInfo> {
  const body = await exchange.readJson();
  const seconds =
    optionalInteger(body, "timeout_secs", 0, limits.processWaitTimeoutMaxSeconds) ??
    limits.processWaitTimeoutSeconds;
  const over = Promise.withResolvers<void>();
  const timer = setTimeout(over.resolve, seconds * 1000);
  departure(exchange).addEventListener("abort", () => over.resolve());
  await Promise.race([process.finished, over.promise]);
  clearTimeout(timer);
  if (process.hasEnded) return process.info();
  throw new ClocheError("deadline_exceeded", `process ${process.id} still runs after ${seconds} s`);
}
