/**
 * The service's control socket, `<home>/run/control.sock`, for the local operator (root) only. Only one process of a home can hold
 * it, so two services cannot run at once. A socket left by a killed service refuses connections and is replaced.
 *
 *   POST /stop                suspends machines, stops the service, then answers
 *   POST /rotate-signing-key  signs with a new key
 *   POST /prune-cache         removes old artifacts
 */
import { createServer, request, type Server } from "node:http";
import { mkdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { sendJson } from "@cloche/base";

const socketPath = (home: string): string => join(home, "run", "control.sock");

export interface ControlCommands {
  /** Stops the service; `suspend`: machines too. Resolves when all is stopped. */
  stop(options: { suspend: boolean }): Promise<void>;
  /** Signs tokens with a new key (key-rotation.ts). The answer is printed to the operator. */
  rotateSigningKey(): Promise<object>;
  /** Removes unused artifacts; the answer names them. */
  pruneCache(): Promise<object>;
}

export class AlreadyRunning extends Error {
  override readonly name = "AlreadyRunning";
}

/** Takes the socket. Throws AlreadyRunning if a running service of this home holds it. */
export async function openControlSocket(home: string, commands: ControlCommands): Promise<Server> {
  const path = socketPath(home);
  await mkdir(join(home, "run"), { recursive: true, mode: 0o755 });
  if (await pingControl(home)) throw new AlreadyRunning(`a service of ${home} is running already`);
  await rm(path, { force: true });
  const server = createServer((incoming, response) => {
    const answer = (status: number, body: object): void => sendJson(response, status, body);
    if (incoming.method === "GET" && incoming.url === "/ping") return answer(200, { pid: process.pid });
    if (incoming.method === "POST" && incoming.url?.startsWith("/stop")) {
      const suspend = !incoming.url.includes("suspend=false");
      commands.stop({ suspend }).then(
        () => answer(200, { ok: true }),
        (error: Error) => answer(500, { code: "internal", message: error.message }),
      );
      return;
    }
    const orders: Record<string, () => Promise<object>> = {
      "/rotate-signing-key": commands.rotateSigningKey,
      "/prune-cache": commands.pruneCache,
    };
    const order = incoming.method === "POST" ? orders[incoming.url ?? ""] : undefined;
    if (order !== undefined) {
      order().then(
        (done) => answer(200, done),
        (error: Error) => answer(500, { code: "internal", message: error.message }),
      );
      return;
    }
    return answer(404, {
      code: "not_found",
      message: "POST /stop, /rotate-signing-key or /prune-cache, or GET /ping",
    });
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

/** Whether a service of this home listens on its control socket. */
export async function pingControl(home: string): Promise<boolean> {
  return callControl(home, "GET", "/ping", 5_000).then(
    () => true,
    () => false,
  );
}

/** Asks the running service to stop and waits until it has stopped. False: no service is running. */
export async function requestStop(home: string): Promise<boolean> {
  if (!(await pingControl(home))) return false;
  await callControl(home, "POST", "/stop?suspend=true", 600_000);
  return true;
}

/** Asks the running service for a new signing key; resolves with its answer. Undefined: no service is running. */
export async function requestRotation(home: string): Promise<unknown> {
  if (!(await pingControl(home))) return undefined;
  return callControl(home, "POST", "/rotate-signing-key", 120_000);
}

/** Asks the running service to remove unused artifacts; resolves with its answer. Undefined: no service is running. */
export async function requestPrune(home: string): Promise<unknown> {
  if (!(await pingControl(home))) return undefined;
  return callControl(home, "POST", "/prune-cache", 600_000);
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
        reject(new Error(message ?? `the service answered ${response.statusCode}`));
      });
    });
    call.on("timeout", () => call.destroy(new Error("the service does not answer on its control socket")));
    call.on("error", reject);
    call.end();
  });
}
