import { once } from "node:events";
import { createServer as createTcpServer, type AddressInfo, type Server } from "node:net";
import { createServer as createTlsServer } from "node:tls";
import { channel } from "@cloche/protocol";
import { expect, test } from "vitest";
import { channelKeyOf, connectToAgent, isForeignAgent, preSharedKeyOf } from "./agent-channel.ts";

const key = channelKeyOf("this machine's secret");

/** Connects through the channel to `server`; returns "an agent", or the error. */
async function meet(server: Server): Promise<unknown> {
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  const socket = connectToAgent({ host: "127.0.0.1", port, key });
  socket.write("the request");
  const met = await new Promise((resolve) => {
    socket.once("secureConnect", () => resolve("an agent"));
    socket.once("error", resolve);
  });
  socket.destroy();
  server.close();
  return met;
}

test("a listener with the key is the agent; one with another is not", async () => {
  const withKey = (own: Uint8Array) =>
    createTlsServer({ ciphers: channel.cipher, pskCallback: () => preSharedKeyOf(own) });
  expect(await meet(withKey(key))).toBe("an agent");
  expect(await meet(withKey(channelKeyOf("another"))).then(isForeignAgent)).toBe(true);
});

test("a listener that speaks no TLS hears nothing of the request, and is no agent", async () => {
  let heard = "";
  const server = createTcpServer((socket) => {
    socket.on("data", (chunk) => {
      heard += chunk.toString("latin1");
      socket.write("HTTP/1.1 200 OK\r\n\r\n");
    });
    socket.on("error", () => undefined);
  });
  expect(await meet(server).then(isForeignAgent)).toBe(true);
  expect(heard).not.toContain("the request");
});

test("nobody there is not somebody else", () => {
  expect(isForeignAgent(Object.assign(new Error("refused"), { code: "ECONNREFUSED" }))).toBe(false);
});
