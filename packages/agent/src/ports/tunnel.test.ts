import { once } from "node:events";
import { connect, createServer, type AddressInfo, type Server, type Socket } from "node:net";
import { portTunnelPath } from "@cloche/protocol";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { createHttpServer } from "../http/server.ts";
import { portTunnel } from "./tunnel.ts";

const rounds = 40;
const body = Buffer.alloc(64 * 1024, "x");

describe("the port tunnel", () => {
  const agent = createHttpServer({
    routes: [],
    upgrades: [portTunnel(0, () => undefined)],
    authorize: () => undefined,
    track: () => () => undefined,
    randomBytes: (length) => Buffer.alloc(length, 7),
    log: { info: () => undefined, warn: () => undefined, error: () => undefined },
  });
  let server: Server | undefined;
  beforeEach(async () => {
    agent.listen(0, "127.0.0.1");
    await once(agent, "listening");
  });
  afterEach(() => {
    server?.close();
    agent.closeAllConnections();
    agent.close();
  });

  const serve = async (each: (socket: Socket) => void): Promise<number> => {
    server = createServer((socket) => {
      socket.on("error", () => undefined);
      each(socket);
    }).listen(0, "127.0.0.1");
    await once(server, "listening");
    return (server.address() as AddressInfo).port;
  };

  /** All that comes through a tunnel to `port`, while `bytes` are sent into it. */
  const through = (port: number, bytes: number): Promise<string> =>
    new Promise((resolve, reject) => {
      const socket = connect((agent.address() as AddressInfo).port, "127.0.0.1");
      let seen = "";
      let left = bytes;
      const send = (): void => {
        while (left > 0 && !socket.writableEnded) {
          left -= body.length;
          if (!socket.write(body)) return void socket.once("drain", send);
        }
      };
      socket.on("data", (chunk) => {
        const begins = seen === "";
        seen += chunk.toString("latin1");
        if (begins) send();
      });
      socket.once("end", () => {
        socket.destroy();
        resolve(seen.slice(seen.indexOf("\r\n\r\n") + 4));
      });
      socket.once("error", reject);
      const head = "host: x\r\nconnection: upgrade\r\nupgrade: cloche-port";
      socket.write(`GET ${portTunnelPath}${port} HTTP/1.1\r\n${head}\r\n\r\n`);
    });

  it("brings the whole answer of a server that answers before it has read the request, and ends", async () => {
    const answer = `HTTP/1.1 413 Content Too Large\r\ncontent-length: 100000\r\n\r\n${"a".repeat(100_000)}`;
    const port = await serve((socket) => {
      socket.once("data", () => {
        // Nothing more is read: closed like this, the kernel resets the connection.
        socket.pause();
        socket.write(answer, () => socket.destroy());
      });
    });
    for (let round = 0; round < rounds; round += 1) expect(await through(port, 4 * 1024 ** 2)).toBe(answer);
  });
});
