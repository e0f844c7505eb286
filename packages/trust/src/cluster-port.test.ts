/**
 * The ports of a cluster over real TLS on the loopback: who may call what, how a newcomer joins, how a certificate is
 * renewed.
 */
import { X509Certificate } from "node:crypto";
import { once } from "node:events";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join as joinPath } from "node:path";
import http2 from "node:http2";
import net from "node:net";
import { connect, type TLSSocket } from "node:tls";
import { silentLog, strangersLines, systemClock } from "@cloche/base";
import { recordedLog } from "@cloche/base/testing";
import { ClusterService, HostRegistryService } from "@cloche/protocol/host-registry";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { ClusterPort } from "./cluster-port.ts";
import { requestCertificate } from "./authority.ts";
import { openCredentials } from "./credential-files.ts";
import type { Identity } from "./identity.ts";
import { KeptCredentials } from "./kept-credentials.ts";
import { connectTo, connectToGateways, connectWith } from "./rpc-client.ts";
import {
  installation as ofCluster,
  secret,
  type TestGateway,
  TestInstallation,
} from "./testing/installation.ts";
import { JoinTokens } from "./join-token.ts";
import { clientSettings, openServerSettings, serverSettings } from "./tls-settings.ts";

const hostIdentity: Identity = { role: "host", id: "h-1" };
const edgeIdentity: Identity = { role: "edge", id: "e-1" };
let installation: TestInstallation;
let gateway: TestGateway;
let folder = "";
const close: (() => unknown)[] = [];

beforeAll(async () => {
  installation = await TestInstallation.open();
  gateway = await installation.gateway("g-1");
  folder = await mkdtemp(joinPath(tmpdir(), "cloche-trust-"));
});
afterEach(async () => {
  for (const one of close.splice(0)) await one();
});
afterAll(async () => {
  await gateway.close();
  await rm(folder, { recursive: true });
});

async function clientOf(identity: Identity, address = gateway.address) {
  const credentials = await installation.credentials(identity);
  const connection = connectTo(address, { role: "gateway" }, () => credentials);
  close.push(connection.close);
  return {
    cluster: createClient(ClusterService, connection.transport),
    registry: createClient(HostRegistryService, connection.transport),
  };
}
const codeOf = async (call: Promise<unknown>): Promise<Code> =>
  await call.then(
    () => {
      throw new Error("it was not refused");
    },
    (error: unknown) => ConnectError.from(error).code,
  );

describe("the calls of a gateway's port", () => {
  it("are for the roles that they say", async () => {
    const host = await clientOf(hostIdentity);
    const edge = await clientOf(edgeIdentity);
    await host.registry.renewHost({ hostId: "h-1" });
    expect(await codeOf(edge.registry.renewHost({ hostId: "h-1" }))).toBe(Code.PermissionDenied);
    expect(await edge.cluster.getEdgeCertificate({})).toMatchObject({ key: "secret" });
    expect(await codeOf(host.cluster.getEdgeCertificate({}))).toBe(Code.PermissionDenied);
    expect(await host.cluster.getInstallation({})).toMatchObject(ofCluster);
    expect(gateway.renewals).toEqual(["h-1"]);
  });

  it("let in whoever has no certificate, or one that does not count, to join alone", async () => {
    const ca = installation.authority.certificate;
    const other = await TestInstallation.open();
    const strangers = [
      { cert: undefined, key: undefined },
      await other.credentials(edgeIdentity),
      await installation.credentials(edgeIdentity, Date.now() - 8 * 86_400_000),
    ];
    for (const { cert, key } of strangers) {
      const {
        cert: _cert,
        key: _key,
        ...settings
      } = clientSettings({ ca, cert: "", key: "" }, { role: "gateway" });
      const connection = connectWith(gateway.address, () => ({ ...settings, ...(cert && { cert, key }) }));
      close.push(connection.close);
      const cluster = createClient(ClusterService, connection.transport);
      const registry = createClient(HostRegistryService, connection.transport);
      expect(await codeOf(cluster.getEdgeCertificate({}))).toBe(Code.PermissionDenied);
      expect(await codeOf(cluster.renewCertificate({}))).toBe(Code.PermissionDenied);
      expect(await codeOf(registry.renewHost({ hostId: "h-1" }))).toBe(Code.PermissionDenied);
      expect(await codeOf(cluster.join({ token: "x" }))).toBe(Code.InvalidArgument);
    }
  });

  it("reach no gateway of another installation, and no host that says it is one", async () => {
    const other = await TestInstallation.open();
    const foreign = await other.gateway("g-1");
    close.push(() => foreign.close());
    const { registry } = await clientOf(hostIdentity, foreign.address);
    await expect(registry.renewHost({ hostId: "h-1" })).rejects.toThrow();
    expect(foreign.renewals).toEqual([]);
  });
});

it("a connection whose caller is gone is not kept", async () => {
  const { registry } = await clientOf(hostIdentity);
  await registry.renewHost({ hostId: "h-1" });
  expect(gateway.rpc.connections).toBeGreaterThan(0);
  for (const one of close.splice(0)) await one();
  await expect.poll(() => gateway.rpc.connections).toBe(0);
});

describe("callers without a certificate", () => {
  const {
    cert: _cert,
    key: _key,
    ...settings
  } = clientSettings({ ca: "", cert: "", key: "" }, { role: "gateway" });
  const strangerOf = (port: number): TLSSocket => {
    const ca = installation.authority.certificate;
    const socket = connect({ ...settings, ca, host: "127.0.0.1", port, ALPNProtocols: ["h2"] });
    return socket.on("error", () => undefined);
  };

  it("have one stream, and little of it is kept in memory", async () => {
    const socket = strangerOf(gateway.port.port);
    const session = http2.connect("https://gateway", { createConnection: () => socket });
    session.on("error", () => undefined);
    close.push(() => session.destroy());
    await once(session, "remoteSettings");
    expect(session.remoteSettings.maxConcurrentStreams).toBe(1);
    const join = "/cloche.host.v1.ClusterService/Join";
    const stream = session.request({ ":method": "POST", ":path": join, "content-type": "application/proto" });
    stream.on("error", () => undefined);
    stream.write(Buffer.alloc(1024 * 1024));
    const [headers] = (await once(stream, "response")) as [Record<string, unknown>];
    expect(headers[":status"]).toBe(429);
  });

  it("and mute ones make room for each other, and take no place of a member", async () => {
    const port = await ClusterPort.listen({
      tls: openServerSettings(await installation.credentials({ role: "gateway", id: "g-2" })),
      protocols: { h2: { roles: "anybody", serve: (socket) => gateway.rpc.serve(socket) } },
      address: "127.0.0.1",
      port: 0,
      log: silentLog,
      strangers: { connections: 4, connectionsPerAddress: 3 },
    });
    close.push(() => port.close());
    const before = gateway.rpc.connections;
    const member = connect({
      ...clientSettings(await installation.credentials(hostIdentity), { role: "gateway" }),
      host: "127.0.0.1",
      port: port.port,
      ALPNProtocols: ["h2"],
    });
    member.on("error", () => undefined);
    const session = http2.connect("https://gateway", { createConnection: () => member });
    session.on("error", () => undefined);
    close.push(() => session.destroy());
    await once(session, "remoteSettings");
    const mute = Array.from({ length: 6 }, () => net.connect(port.port, "127.0.0.1").resume());
    const strangers = Array.from({ length: 6 }, () => strangerOf(port.port).resume());
    let gone = 0;
    for (const socket of [...mute, ...strangers])
      socket.on("error", () => undefined).once("close", () => (gone += 1));
    await expect.poll(() => gone).toBe(9);
    expect(member.closed).toBe(false);
    await new Promise((resolve) => session.ping(resolve));
    expect(gateway.rpc.connections).toBeLessThanOrEqual(before + 4);
    for (const socket of [...mute, ...strangers]) socket.destroy();
  });
});

describe("a port of several protocols", () => {
  it("gives each to its own roles, and refuses what it does not speak", async () => {
    const served: string[] = [];
    const serve = (name: string) => (socket: import("node:tls").TLSSocket) => {
      served.push(name);
      socket.on("error", () => undefined);
      socket.end(name);
    };
    const port = await ClusterPort.listen({
      tls: serverSettings(await installation.credentials(hostIdentity)),
      protocols: {
        relay: { roles: ["edge"], serve: serve("relay") },
        orders: { roles: ["gateway"], serve: serve("orders") },
      },
      address: "127.0.0.1",
      port: 0,
      log: silentLog,
    });
    close.push(() => port.close());
    const ask = async (identity: Identity, protocol: string): Promise<string> => {
      const tls = clientSettings(await installation.credentials(identity), hostIdentity);
      const socket = connect({ ...tls, host: "127.0.0.1", port: port.port, ALPNProtocols: [protocol] });
      let answer = "";
      socket.on("data", (chunk) => (answer += String(chunk))).on("error", () => undefined);
      await new Promise((resolve) => void socket.once("close", resolve));
      return answer;
    };
    const asked = [
      await ask(edgeIdentity, "relay"),
      await ask({ role: "gateway", id: "g" }, "orders"),
      await ask(edgeIdentity, "orders"),
      await ask({ role: "gateway", id: "g" }, "relay"),
      await ask(hostIdentity, "relay"),
      await ask(edgeIdentity, "http/1.1"),
    ];
    expect(asked).toEqual(["relay", "orders", "", "", "", ""]);
    expect(served).toEqual(["relay", "orders"]);
  });
});

describe("a newcomer", () => {
  const placeOf = (name: string, token: string, address = gateway.address) => ({
    folder: joinPath(folder, name),
    identity: { role: "host", id: `h-${name}` } as Identity,
    gateways: [address],
    token,
    nowMs: Date.now(),
  });

  it("joins with a token, once, and finds its credentials at the next start", async () => {
    const token = installation.tokens.issue("host", 60_000, Date.now());
    const joined = await openCredentials(placeOf("a", token));
    expect(new X509Certificate(joined.cert).subjectAltName).toBe("URI:cloche://host/h-a");
    expect(await openCredentials(placeOf("a", ""))).toEqual(joined);
    expect(await openCredentials(placeOf("a", token))).toEqual(joined);
    await expect(openCredentials(placeOf("b", token))).rejects.toMatchObject({ code: "unauthenticated" });
    const renewed = { ...placeOf("a", ""), nowMs: Date.now() + 8 * 86_400_000 };
    await expect(openCredentials(renewed)).rejects.toThrow(/certificate is over.*join-token host/);
    await expect(openCredentials({ ...placeOf("a", ""), identity: edgeIdentity })).rejects.toThrow(
      /of host h-a/,
    );
  });

  it("joins with a reusable token as often as it is shown, until it is over", async () => {
    const token = installation.tokens.issue("host", 60_000, Date.now(), true);
    expect(token).toMatch(/^cloche-join-reusable\.host\./);
    await openCredentials(placeOf("c", token));
    await openCredentials(placeOf("d", token));
    const over = installation.tokens.issue("host", -1, Date.now(), true);
    await expect(openCredentials(placeOf("e", over))).rejects.toMatchObject({ code: "unauthenticated" });
    const altered = installation.tokens
      .issue("host", 60_000, Date.now())
      .replace("cloche-join.", "cloche-join-reusable.");
    await expect(openCredentials(placeOf("e", altered))).rejects.toMatchObject({ code: "unauthenticated" });
  });

  it("takes no id that another key has, until that one is forgotten", async () => {
    const token = installation.tokens.issue("host", 60_000, Date.now(), true);
    const identity = { role: "host", id: "h-taken" } as const;
    const rightful = await openCredentials({ ...placeOf("rightful", token), identity });
    const intruder = { ...placeOf("intruder", token), identity };
    await expect(openCredentials(intruder)).rejects.toThrow(
      /h-taken belongs to another host.*forget host\/h-taken/,
    );
    const once = installation.tokens.issue("host", 60_000, Date.now());
    await expect(openCredentials({ ...intruder, token: once })).rejects.toMatchObject({
      code: "already_exists",
    });
    // The refused join did not use up the token.
    await openCredentials(placeOf("h", once));
    // The rightful host lost its answer: it joins again with the same key.
    await rm(joinPath(folder, "rightful", "cert.pem"));
    const again = await openCredentials({ ...placeOf("rightful", token), identity });
    expect(again.key).toBe(rightful.key);

    installation.members.delete("cloche://host/h-taken");
    await openCredentials(intruder);
    const renewal = connectTo(gateway.address, { role: "gateway" }, () => rightful);
    const { request } = await requestCertificate(rightful.key);
    const renewed = createClient(ClusterService, renewal.transport).renewCertificate({
      certificateRequest: request,
    });
    await expect(renewed).rejects.toMatchObject({ code: Code.PermissionDenied });
    renewal.close();
  });

  it("sends its token to no gateway of another authority than the token names", async () => {
    const other = await TestInstallation.open();
    const token = new JoinTokens(secret, other.authority.certificate).issue("host", 60_000, Date.now());
    // The gateway would accept the token, because both installations have the same secret here.
    const problem = await openCredentials(placeOf("f", token)).catch((error: Error) => error.message);
    expect(problem).toContain("nothing was sent to it");
    expect(await readdir(joinPath(folder, "f"))).toEqual(["key.pem"]);
  });

  it("is told when its token is for another role", async () => {
    const token = installation.tokens.issue("edge", 60_000, Date.now());
    await expect(openCredentials(placeOf("g", token))).rejects.toThrow(/is for the role edge/);
  });

  it("that has joined is refused where every gateway that answers is of another cluster", async () => {
    const place = (gateways: string[]) => ({
      folder: joinPath(folder, "joined"),
      identity: { role: "host", id: "h-joined" } as const,
      gateways,
      token: "",
      nowMs: Date.now(),
    });
    const token = installation.tokens.issue("host", 60_000, Date.now());
    const joined = await openCredentials({ ...place([gateway.address]), token });
    const other = await (await TestInstallation.open()).gateway("g-1");
    close.push(other.close);
    await expect(openCredentials(place([other.address, "127.0.0.1:1"]))).rejects.toMatchObject({
      code: "failed_precondition",
      message: expect.stringMatching(
        new RegExp(`CLOCHE_CLUSTER_GATEWAYS: ${other.address} is of another cluster .*${place([]).folder}`),
      ),
    });
    // One that is away says nothing, and one of its own is enough.
    expect(await openCredentials(place(["127.0.0.1:1"]))).toEqual(joined);
    expect(await openCredentials(place([other.address, gateway.address]))).toEqual(joined);
  });

  it("asks the next gateway when one does not answer", async () => {
    const token = installation.tokens.issue("host", 60_000, Date.now());
    const gateways = ["127.0.0.1:1", gateway.address];
    await openCredentials({ ...placeOf("h", token), gateways });
    await expect(
      openCredentials({ ...placeOf("i", token), gateways: ["127.0.0.1:1"] }),
    ).rejects.toMatchObject({
      code: "unavailable",
    });
  });
});

describe("a certificate", () => {
  it("is renewed at half of its life, for the same key, and servers and calls take the new one", async () => {
    const dayMs = 86_400_000;
    const first = await installation.credentials(hostIdentity, Date.now() - 4 * dayMs);
    const connection = connectToGateways([gateway.address], () => kept.current);
    const cluster = createClient(ClusterService, connection.transport);
    const saved: string[] = [];
    const kept = new KeptCredentials({
      first,
      renew: async (certificateRequest) =>
        (await cluster.renewCertificate({ certificateRequest })).certificate,
      save: async ({ cert }) => void saved.push(cert),
      clock: systemClock,
      log: silentLog,
    });
    const heard: string[] = [];
    kept.onRenewed(({ cert }) => heard.push(cert));
    kept.start();
    close.push(() => kept.close(), connection.close);
    await expect.poll(() => heard.length).toBe(1);
    const { current } = kept;
    expect([saved, heard]).toEqual([[current.cert], [current.cert]]);
    const [before, after] = [new X509Certificate(first.cert), new X509Certificate(current.cert)];
    expect(after.subjectAltName).toBe(before.subjectAltName);
    expect(after.publicKey.equals(before.publicKey)).toBe(true);
    expect(Date.parse(after.validTo) - Date.parse(before.validTo)).toBeGreaterThan(3 * dayMs);
  });

  it("that is fresh is left alone", async () => {
    let asked = 0;
    const renew = async (): Promise<string> => String((asked += 1));
    const first = await installation.credentials(hostIdentity);
    const kept = new KeptCredentials({ first, renew, clock: systemClock, log: silentLog });
    kept.start();
    await new Promise((resolve) => setTimeout(resolve, 50));
    await kept.close();
    expect([asked, kept.current]).toEqual([0, first]);
  });
});

describe("calls to any of several gateways", () => {
  it("go on with the next when one goes away, and come back to one that is there again", async () => {
    const second = await installation.gateway("g-2");
    const credentials = await installation.credentials(hostIdentity);
    const connection = connectToGateways([second.address, gateway.address], () => credentials);
    close.push(connection.close);
    const registry = createClient(HostRegistryService, connection.transport);
    const before = gateway.renewals.length;
    await registry.renewHost({ hostId: "x" });
    expect(second.renewals).toEqual(["x"]);
    await second.close();
    await registry.renewHost({ hostId: "y" });
    await registry.renewHost({ hostId: "z" });
    expect(gateway.renewals.slice(before)).toEqual(["y", "z"]);
  });

  it("fail with unavailable when all are away", async () => {
    const credentials = await installation.credentials(hostIdentity);
    const connection = connectToGateways(["127.0.0.1:1", "127.0.0.1:2"], () => credentials);
    close.push(connection.close);
    const registry = createClient(HostRegistryService, connection.transport);
    expect(await codeOf(registry.renewHost({ hostId: "x" }))).toBe(Code.Unavailable);
  });
});

it("writes a bounded number of lines for callers that it refuses", async () => {
  const { log, lines } = recordedLog();
  const flooded = await installation.gateway("g-2", 0, log);
  close.push(flooded.close);
  const burst = strangersLines.linesPerSecond * strangersLines.burstSeconds;
  const { port } = flooded.port;
  for (let flood = 0; flood < burst + 60; flood += 1) {
    const socket = connect({ host: "127.0.0.1", port, rejectUnauthorized: false });
    socket.on("error", () => undefined).resume();
    await once(socket, "close");
  }
  const refused = lines.filter(({ message }) => message.startsWith("a connection to the cluster's port"));
  expect(refused.length).toBeGreaterThanOrEqual(burst);
  expect(refused.length).toBeLessThan(burst + 60);
}, 30_000);
