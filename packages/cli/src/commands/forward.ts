import { createServer, type Server, type Socket } from "node:net";
import { once } from "node:events";
import type { Sandbox } from "@cloche/sdk";
import { UsageError } from "../exit-codes.ts";
import { portNumber } from "../options.ts";
import { printJson, printLines, printNotice, write } from "../terminal.ts";
import { act, type Registry, type Run } from "../register.ts";

/** forward. */
export function addForwardCommand(registry: Registry): void {
  registry.program
    .command("forward <sandbox> <ports...>")
    .description(
      "listen on this machine and pass each TCP connection on to a port of the sandbox, until Ctrl-C",
    )
    .option("--address <address>", "where to listen", "127.0.0.1")
    .addHelpText(
      "after",
      `
A port is <sandbox's>, or <sandbox's>:<this machine's>; 0 for this machine's takes a free one.

Examples:
  cloche forward demo 5432          # psql -h 127.0.0.1
  cloche forward demo 8080:3000     # http://127.0.0.1:3000`,
    )
    .action(act(registry, forward));
}

async function forward(
  run: Run,
  nameOrId: string,
  ports: string[],
  options: { address: string },
): Promise<void> {
  const pairs = ports.map(readPair);
  const sandbox = await run.sandbox(nameOrId);
  const servers: Server[] = [];
  try {
    for (const { inside, here } of pairs)
      servers.push(await listen(run, sandbox, inside, here, options.address));
    const shown = pairs.map(({ inside }, index) => ({
      port: inside,
      ...addressOf(servers[index] as Server),
    }));
    if (run.json) await printJson(run.terminal, shown);
    else
      for (const { port, host, local_port } of shown)
        await printLines(run.terminal, `${host}:${local_port} → ${sandbox.info.name || sandbox.id}:${port}`);
    if (!run.signal.aborted) await once(run.signal, "abort");
  } finally {
    for (const server of servers) server.close();
  }
}

function readPair(text: string): { inside: number; here: number } {
  const [inside = "", here, ...more] = text.split(":");
  if (more.length > 0 || here === "") throw new UsageError(`a port is like 8080 or 8080:3000, not ${text}`);
  try {
    const port = portNumber(inside);
    return { inside: port, here: here === undefined ? port : here === "0" ? 0 : portNumber(here) };
  } catch (error) {
    throw new UsageError(`${text}: ${(error as Error).message}`);
  }
}

async function listen(
  run: Run,
  sandbox: Sandbox,
  inside: number,
  here: number,
  host: string,
): Promise<Server> {
  const server = createServer({ allowHalfOpen: true, noDelay: true }, (socket) => {
    relay(run, sandbox, inside, socket).catch((error: unknown) => {
      if (!run.signal.aborted) printNotice(run.terminal, `port ${inside}: ${(error as Error).message}`);
      socket.destroy();
    });
  });
  server.listen(here, host);
  await once(server, "listening");
  return server;
}

/** Copies both directions, each at the pace of its reader; each half ends separately. */
async function relay(run: Run, sandbox: Sandbox, port: number, socket: Socket): Promise<void> {
  const over = new AbortController();
  socket.on("error", () => undefined);
  socket.once("close", () => over.abort());
  const signal = AbortSignal.any([run.signal, over.signal]);
  const connection = await sandbox.connectPort(port, { signal });
  const up = (async () => {
    for await (const piece of socket) await connection.write(piece as Buffer);
    connection.end();
  })();
  up.catch(() => connection.close());
  for await (const piece of connection) await write(socket, piece);
  socket.end();
  await up;
  connection.close();
}

function addressOf(server: Server): { host: string; local_port: number } {
  const address = server.address();
  if (address === null || typeof address === "string") throw new Error("not listening");
  return { host: address.address, local_port: address.port };
}
