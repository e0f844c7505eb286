/**
 * Kept connections to an agent: how many handshakes calls cost, and what happens when a connection breaks at any moment.
 */
import { createServer, type Server } from "node:https";
import type { IncomingMessage, ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import type { TLSSocket } from "node:tls";
import { channelKeyOf, preSharedKeyOf } from "@cloche/base";
import { channel } from "@cloche/protocol";
import { afterEach, beforeEach, expect, it } from "vitest";
import { AgentClient } from "./agent-client.ts";
import { AgentConnections } from "./agent-connections.ts";

type Behaviour = (request: IncomingMessage, response: ServerResponse) => void;
const answers: Behaviour = (_request, response) => void response.end("{}");

let server: Server;
let connections: AgentConnections;
let sockets: TLSSocket[];
let requests: string[];
let behaviour: Behaviour;

beforeEach(async () => {
  [sockets, requests, behaviour] = [[], [], answers];
  connections = new AgentConnections();
  const psk = preSharedKeyOf(channelKeyOf("secret"));
  server = createServer(
    { pskCallback: () => psk, ciphers: channel.cipher, allowHalfOpen: true },
    (request, response) => {
      requests.push((request.url ?? "").split("/").at(-1) ?? "");
      request.resume().once("end", () => behaviour(request, response));
    },
  );
  server.on("secureConnection", (socket: TLSSocket) => sockets.push(socket));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
});
afterEach(() => {
  connections.closeAll();
  server.closeAllConnections();
  server.close();
});

const client = (cut?: AbortSignal): AgentClient => {
  const { port } = server.address() as AddressInfo;
  const address = { agentHost: "127.0.0.1", agentPort: port };
  return new AgentClient(address, "secret", { connections, ...(cut && { cut }) });
};
const idle = (count: number) => expect.poll(() => connections.idle).toBe(count);
/** Longer than a connection counts as certain. */
const aWhile = () => new Promise((resolve) => setTimeout(resolve, 40));

it("uses one connection for calls one after the other, and checks it before a call that must not be repeated", async () => {
  for (let i = 0; i < 3; i += 1) await client().getActivity();
  await idle(1);
  await aWhile();
  await client().attachDisk({});
  await idle(1);
  expect(sockets).toHaveLength(1);
  expect(requests).toEqual(["GetActivity", "GetActivity", "GetActivity", "healthz", "AttachDisk"]);
});

it("keeps no connection of Assign, whose answer ends its key", async () => {
  await client().assign({});
  await expect.poll(() => sockets[0]?.destroyed).toBe(true);
  expect(connections.idle).toBe(0);
});

it("keeps one of several connections that were needed at once", async () => {
  await Promise.all([1, 2, 3].map(() => client().getActivity()));
  await idle(1);
});

it.each(["end", "destroy"] as const)("lets go of an idle connection at the agent's %s", async (how) => {
  await client().getActivity();
  await idle(1);
  sockets[0]?.[how]();
  await idle(0);
  await client().detachDisk();
  expect(requests).toEqual(["GetActivity", "DetachDisk"]);
});

it("takes nothing that an agent sends between two calls for an answer", async () => {
  await client().getActivity();
  await idle(1);
  sockets[0]?.write('HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\n{"runningExecs": 77}');
  await idle(0);
  expect(await client().getActivity()).toMatchObject({ runningExecs: 0 });
});

it("takes a second answer in the same bytes for nothing, or fails", async () => {
  const answer = 'HTTP/1.1 200 OK\r\ncontent-length: 19\r\n\r\n{"runningExecs": 7}';
  behaviour = (request) => request.socket.write(answer + answer.replace("7}", "8}"));
  const first = await client()
    .getActivity()
    .catch(() => ({ runningExecs: 7 }));
  expect(first).toMatchObject({ runningExecs: 7 });
  behaviour = answers;
  expect(await client().getActivity()).toMatchObject({ runningExecs: 0 });
});

it("repeats a repeatable call whose kept connection breaks under it, once", async () => {
  await client().getActivity();
  await idle(1);
  let breaks = 1;
  behaviour = (request, response) => {
    if (breaks > 0) request.socket.destroy();
    else answers(request, response);
    breaks -= 1;
  };
  await client().prepareCheckpoint();
  expect(requests).toEqual(["GetActivity", "PrepareCheckpoint", "PrepareCheckpoint"]);
  breaks = 9;
  await idle(1);
  await expect(client().getActivity()).rejects.toMatchObject({ code: "unavailable" });
  expect(requests.slice(3)).toEqual(["GetActivity", "GetActivity"]);
});

it("never repeats a call that must not be repeated, in the middle of its answer or before it", async () => {
  for (const begun of ["", "HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\n{"]) {
    behaviour = answers;
    await client().getActivity();
    await idle(1);
    requests = [];
    behaviour = (request) => {
      request.socket.write(begun);
      request.socket.destroy();
    };
    await expect(client().attachDisk({})).rejects.toMatchObject({ code: "unavailable" });
    expect(requests.filter((method) => method === "AttachDisk")).toHaveLength(1);
  }
});

it("finds a connection that answers nothing before it sends a call that must not be repeated", async () => {
  await client().getActivity();
  await idle(1);
  await aWhile();
  behaviour = (request, response) => {
    if (!request.url?.endsWith("healthz")) answers(request, response);
  };
  await client().attachDisk({});
  expect(requests).toEqual(["GetActivity", "healthz", "AttachDisk"]);
  expect(sockets).toHaveLength(2);
});

it("closes a connection whose call was cut off", async () => {
  const cut = new AbortController();
  behaviour = () => cut.abort(new Error("the machine is to be destroyed"));
  await expect(client(cut.signal).getActivity()).rejects.toMatchObject({ code: "unavailable" });
  await expect.poll(() => sockets[0]?.destroyed).toBe(true);
  expect(connections.idle).toBe(0);
});

it("closes what is kept to an address, whatever its key", async () => {
  await client().getActivity();
  await idle(1);
  const { port } = server.address() as AddressInfo;
  connections.close({ host: "127.0.0.1", port: port + 1 });
  expect(connections.idle).toBe(1);
  connections.close({ host: "127.0.0.1", port });
  await idle(0);
});
