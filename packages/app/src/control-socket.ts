/**
 * The service's control socket, `<home>/run/control.sock`, for the local operator (root) only. Only one process of a home can hold
 * it, so two services cannot run at once. A socket left by a killed service refuses connections and is replaced.
 *
 *   POST /stop       suspends machines, stops the service, then answers
 *   GET  /waiting    what a stop under way waits for: `{"waiting": "host: waits for …"}`
 *   POST /<order>    an order of the operator (orders.ts), whose fields are in the query
 */
import { createServer, request, type Server } from "node:http";
import { mkdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { sendJson } from "@cloche/base";
import type { Order, OrderName, Orders } from "./orders.ts";
import { reportWaiting } from "./report-waiting.ts";

const socketPath = (home: string): string => join(home, "run", "control.sock");

export interface ControlCommands {
  /** Stops the service; `suspend`: machines too. Resolves when all is stopped. */
  stop(options: { suspend: boolean }): Promise<void>;
  /** What a stop waits for that takes long; undefined: nothing. */
  waiting(): string | undefined;
  /** The orders that the program takes. Throws while it starts. */
  orders(): Orders;
}

export class AlreadyRunning extends Error {
  override readonly name = "AlreadyRunning";
}

/** The service refused an order, or failed at it; the message is enough for an operator. */
export class OrderFailed extends Error {
  override readonly name = "OrderFailed";
}

/** Takes the socket. Throws AlreadyRunning if a running service of this home holds it. */
export async function openControlSocket(home: string, commands: ControlCommands): Promise<Server> {
  const path = socketPath(home);
  await mkdir(join(home, "run"), { recursive: true, mode: 0o755 });
  if (await pingControl(home)) throw new AlreadyRunning(`a service of ${home} is running already`);
  await rm(path, { force: true });
  const server = createServer((incoming, response) => {
    const answer = (status: number, body: object): void => sendJson(response, status, body);
    const { pathname, searchParams } = new URL(incoming.url ?? "/", "http://control");
    if (incoming.method === "GET" && pathname === "/ping") return answer(200, { pid: process.pid });
    if (incoming.method === "GET" && pathname === "/waiting")
      return answer(200, { waiting: commands.waiting() });
    if (incoming.method !== "POST")
      return answer(404, { code: "not_found", message: "POST an order, or GET /ping" });
    const run = async (): Promise<object> => {
      if (pathname !== "/stop") return await orderOf(commands, pathname.slice(1))(searchParams);
      await commands.stop({ suspend: searchParams.get("suspend") !== "false" });
      return { ok: true };
    };
    run().then(
      (done) => answer(200, done),
      (error: Error) => answer(500, { code: "internal", message: error.message }),
    );
  });
  const oldMask = process.umask(0o177);
  try {
    await new Promise<void>((resolve, reject) => {
      server.once("error", reject);
      server.listen(path, resolve);
    });
  } finally {
    process.umask(oldMask);
  }
  server.unref();
  return server;
}

function orderOf(commands: ControlCommands, name: string): Order {
  const order = commands.orders()[name as OrderName];
  if (order === undefined)
    throw new Error(
      `the program of this home does not take the order ${name}: another part of the cluster may`,
    );
  return order;
}

/** Whether a service of this home listens on its control socket. */
export async function pingControl(home: string): Promise<boolean> {
  return callControl(home, "GET", "/ping", 5_000).then(
    () => true,
    () => false,
  );
}

/** Asks the running service to stop, waits until it has stopped, and prints what takes long. False: no service is running. */
export async function requestStop(home: string): Promise<boolean> {
  if (!(await pingControl(home))) return false;
  const endReports = reportWaiting(async () => {
    // A service of an earlier release answers 404.
    const { waiting } = (await callControl(home, "GET", "/waiting", 5_000)) as { waiting?: string };
    return waiting;
  });
  await callControl(home, "POST", "/stop?suspend=true", 600_000).finally(endReports);
  return true;
}

/** Gives the running service an order; resolves with its answer. Undefined: no service is running. */
export async function giveOrder(
  home: string,
  order: OrderName,
  fields: Record<string, string> = {},
): Promise<unknown> {
  if (!(await pingControl(home))) return undefined;
  return callControl(home, "POST", `/${order}?${new URLSearchParams(fields)}`, 600_000);
}

function callControl(home: string, method: string, path: string, timeoutMs: number): Promise<unknown> {
  return new Promise((resolve, reject) => {
    const call = request({ socketPath: socketPath(home), method, path, timeout: timeoutMs }, (response) => {
      let text = "";
      response.setEncoding("utf8");
      response.on("data", (chunk: string) => {
        text += chunk;
      });
      response.on("end", () => {
        const body = JSON.parse(text) as { message?: string };
        if (response.statusCode === 200) return resolve(body);
        const { message } = body;
        reject(new OrderFailed(message ?? `the service answered ${response.statusCode}`));
      });
    });
    call.on("timeout", () =>
      call.destroy(new OrderFailed("the service does not answer on its control socket")),
    );
    call.on("error", reject);
    call.end();
  });
}
