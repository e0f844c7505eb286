/** An edge, the relay of a host and an agent, with certificates of the installation's authority. */
import { once } from "node:events";
import { type AddressInfo, createServer, type Server } from "node:net";
import { randomBytes } from "node:crypto";
import type { Duplex } from "node:stream";
import { connect } from "node:tls";
import { silentLog } from "@cloche/base";
import { connectThroughRelay } from "@cloche/edge";
import { Relay } from "@cloche/host";
import { newSandboxId, relayProtocol } from "@cloche/protocol";
import {
  Authority,
  clientSettings,
  ClusterPort,
  type Credentials,
  type Identity,
  requestCertificate,
  serverSettings,
} from "@cloche/trust";
import { afterAll, beforeAll, beforeEach, expect, it } from "vitest";

const id = newSandboxId(randomBytes);
const hostIdentity = { role: "host", id: "h-1" } as const;
let authority: Authority;
let ofHost: Credentials;
let hostPort: ClusterPort;
let agent: Server;
/** What happened at host and agent, in order. */
let seen: string[] = [];

async function credentials(identity: Identity): Promise<Credentials> {
  const { key, request } = await requestCertificate();
  return { ca: authority.certificate, key, cert: await authority.issue(identity, request, Date.now()) };
}

beforeAll(async () => {
  authority = await Authority.open(async (_name, value) => value, Buffer.alloc(32, 7), Date.now());
  ofHost = await credentials(hostIdentity);
  // Says what it gets, and answers what has a question mark.
  agent = createServer((socket) => {
    socket.on("data", (chunk) => {
      seen.push(`agent ${chunk}`);
      if (chunk.includes("?")) socket.write(`re: ${chunk}`);
    });
    socket.on("error", () => undefined);
  });
  agent.listen(0, "127.0.0.1");
  await once(agent, "listening");
  const { port } = agent.address() as AddressInfo;
  const needs = {
    agentOf: (sandboxId: string) => (sandboxId === id ? { host: "127.0.0.1", port } : undefined),
    async hold() {
      seen.push("awake");
      return () => void seen.push("may doze");
    },
    log: silentLog,
  };
  const relay = new Relay(needs);
  hostPort = await ClusterPort.listen({
    tls: serverSettings(ofHost),
    protocols: { [relayProtocol]: { roles: ["edge"], serve: (socket) => relay.serve(socket) } },
    address: "127.0.0.1",
    port: 0,
    log: silentLog,
  });
});
afterAll(async () => {
  await hostPort.close();
  agent.close();
});
beforeEach(() => {
  seen = [];
});

const through = async (
  caller: Identity,
  sandboxId = id,
  expected: Identity = hostIdentity,
): Promise<Duplex> => {
  const tls = clientSettings(await credentials(caller), expected);
  return await connectThroughRelay({ host: "127.0.0.1", port: hostPort.port, tls }, sandboxId);
};
const edge: Identity = { role: "edge", id: "e-1" };

it("carries an edge's bytes both ways, and rouses the machine before each that goes to it", async () => {
  const socket = await through(edge);
  expect(seen).toEqual(["awake", "may doze"]);
  seen = [];
  socket.resume();
  socket.write("one?");
  const [answer] = (await once(socket, "data")) as [Buffer];
  expect(String(answer)).toBe("re: one?");
  expect(seen).toEqual(["awake", "agent one?", "may doze"]);
  socket.write("two");
  await expect.poll(() => seen.at(-1)).toBe("agent two");
  // Not answered yet: it stays awake, until the connection ends.
  expect(seen.slice(3)).toEqual(["awake", "agent two"]);
  socket.destroy();
  await expect.poll(() => seen.at(-1)).toBe("may doze");
});

it("carries much, without a byte too many or too few", async () => {
  const socket = await through(edge);
  socket.write(`${"x".repeat(4_000_000)}!`);
  const bytes = () =>
    seen.reduce((sum, one) => sum + (one.startsWith("agent ") ? one.length - "agent ".length : 0), 0);
  await expect.poll(() => seen.at(-1)?.endsWith("!"), { timeout: 20_000 }).toBe(true);
  expect(bytes()).toBe(4_000_001);
  socket.destroy();
  await expect.poll(() => seen.at(-1)).toBe("may doze");
});

it("lets in edges alone, and reaches the host that was asked for alone", async () => {
  for (const role of ["host", "gateway"] as const)
    await expect(through({ role, id: "x" })).rejects.toMatchObject({ code: "unavailable" });
  await expect(through(edge, id, { role: "host", id: "h-2" })).rejects.toMatchObject({ code: "unavailable" });
  expect(seen).toEqual([]);
});

it("refuses a machine that is not here, and a line that is none", async () => {
  const other = newSandboxId(randomBytes);
  await expect(through(edge, other)).rejects.toMatchObject({ code: "not_found" });
  const tls = clientSettings(await credentials(edge), hostIdentity);
  for (const [line, answer] of [
    ["GET / HTTP/1.1\r\n", "NO invalid_argument\n"],
    ["x".repeat(500), ""],
  ]) {
    const at = { host: "127.0.0.1", port: hostPort.port, ALPNProtocols: [relayProtocol] };
    const socket = connect({ ...tls, ...at });
    socket.on("error", () => undefined);
    let got = "";
    socket.on("data", (chunk) => {
      got += String(chunk);
    });
    socket.write(line ?? "");
    await once(socket, "close");
    expect(got).toBe(answer);
  }
  expect(seen).toEqual([]);
});
