import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { connect, createServer, type TLSSocket } from "node:tls";
import { afterEach, beforeAll, describe, expect, it } from "vitest";
import { Authority, type Credentials, type KeepOnce, requestCertificate } from "./authority.ts";
import { type Identity, identityIn, identityOf, uriOf } from "./identity.ts";
import { isOfToken, JoinTokens } from "./join-token.ts";
import { seal, unseal } from "./seal.ts";
import { clientSettings, serverSettings } from "./tls-settings.ts";

const secret = Buffer.alloc(32, 1);
const otherSecret = Buffer.alloc(32, 2);
const nowMs = Date.now();

/** A database's table of secrets. */
function place(): KeepOnce {
  const kept = new Map<string, string>();
  return async (name, value) => {
    if (!kept.has(name)) kept.set(name, value);
    return kept.get(name) ?? "";
  };
}

async function credentials(authority: Authority, identity: Identity, atMs = nowMs): Promise<Credentials> {
  const { key, request } = await requestCertificate();
  return { ca: authority.certificate, key, cert: await authority.issue(identity, request, atMs) };
}

const gateway: Identity = { role: "gateway", id: "g-1" };
const host: Identity = { role: "host", id: "h-1" };
let authority: Authority;
let stranger: Authority;
let ofGateway: Credentials;
let ofHost: Credentials;
beforeAll(async () => {
  authority = await Authority.open(place(), secret, nowMs);
  stranger = await Authority.open(place(), secret, nowMs);
  ofGateway = await credentials(authority, gateway);
  ofHost = await credentials(authority, host);
});

const close: (() => void)[] = [];
afterEach(() => {
  for (const one of close.splice(0)) one();
});

/** The client's identity for a server with `served`. Throws the error with which either side refuses the other. */
async function meet(
  served: Credentials,
  client: Partial<Credentials>,
  expected: Parameters<typeof clientSettings>[1],
): Promise<Identity | undefined> {
  const server = createServer(serverSettings(served), (socket) => {
    socket.on("error", () => undefined);
    socket.end(JSON.stringify(identityOf(socket) ?? null));
  });
  server.listen(0, "127.0.0.1");
  close.push(() => server.close());
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  const settings = clientSettings({ ca: served.ca, cert: "", key: "", ...client }, expected);
  if (settings.cert === "") {
    delete settings.cert;
    delete settings.key;
  }
  const socket: TLSSocket = connect({ ...settings, host: "127.0.0.1", port });
  close.push(() => socket.destroy());
  let answer = "";
  for await (const chunk of socket) answer += String(chunk);
  return JSON.parse(answer) as Identity;
}

describe("mutual TLS", () => {
  it("tells each side who the other is", async () => {
    expect(await meet(ofGateway, ofHost, { role: "gateway" })).toEqual(host);
    expect(await meet(ofHost, ofGateway, host)).toEqual(gateway);
  });

  it("refuses who has no certificate, one of another installation, or one that is over", async () => {
    await expect(meet(ofGateway, {}, { role: "gateway" })).rejects.toThrow();
    const foreign = { ...(await credentials(stranger, host)), ca: authority.certificate };
    await expect(meet(ofGateway, foreign, { role: "gateway" })).rejects.toThrow();
    await expect(meet({ ...ofGateway }, { ...ofHost, ca: stranger.certificate }, gateway)).rejects.toThrow();
    const over = await credentials(authority, host, nowMs - 8 * 86_400_000);
    await expect(meet(ofGateway, over, { role: "gateway" })).rejects.toThrow();
  });

  it("reaches nobody of another role, nor another of the same", async () => {
    await expect(meet(ofHost, ofHost, { role: "gateway" })).rejects.toThrow(/expected gateway .*host h-1/);
    await expect(meet(ofHost, ofGateway, { role: "host", id: "h-2" })).rejects.toThrow(/reached host h-1/);
  });
});

describe("an identity", () => {
  it("is the one name of a certificate, and nothing like it", () => {
    expect(identityIn(`URI:${uriOf(host)}`)).toEqual(host);
    const none = [
      undefined,
      "",
      "DNS:h-1",
      "URI:cloche://admin/h-1",
      "URI:cloche://host/h-1, URI:cloche://gateway/g-1",
      "DNS:a, URI:cloche://host/h-1",
      'URI:"cloche://host/h-1"',
      "URI:cloche://host/-h",
      "URI:https://host/h-1",
    ];
    for (const names of none) expect(identityIn(names)).toBeUndefined();
    for (const id of ["", "H", "a/b", "a.b", "-a", "a".repeat(64)])
      expect(() => uriOf({ role: "host", id })).toThrow(/id must be/);
  });

  it("is the authority's word: of a request only the key counts", async () => {
    const { request } = await requestCertificate();
    const damaged = request.replace(/[A-Za-z]{4}(?=[^-]*-----END)/, (four) =>
      four.split("").toReversed().join(""),
    );
    await expect(authority.issue(host, damaged, nowMs)).rejects.toThrow();
    await expect(authority.issue({ role: "host", id: "a/b" }, request, nowMs)).rejects.toThrow(/id must be/);
  });
});

describe("the authority", () => {
  it("is one for all gateways, whoever is first, and opens with the operator's secret only", async () => {
    const keep = place();
    const opened = await Promise.all([1, 2, 3].map(() => Authority.open(keep, secret, nowMs)));
    expect(new Set(opened.map(({ certificate }) => certificate)).size).toBe(1);
    await expect(Authority.open(keep, otherSecret, nowMs)).rejects.toThrow(/another secret/);
    await expect(Authority.open(keep, Buffer.alloc(16), nowMs)).rejects.toThrow(/at least 32 bytes/);
  });

  it("lies sealed: its key is not to be read there, and what is sealed has one name", async () => {
    const sealed = seal(secret, "a", "the key");
    expect(Buffer.from(sealed, "base64").toString("latin1")).not.toContain("the key");
    expect(unseal(secret, "a", sealed)).toBe("the key");
    expect(() => unseal(secret, "b", sealed)).toThrow(/another secret, or is damaged/);
    const bytes = Buffer.from(sealed, "base64");
    for (const at of [0, 13, bytes.length - 1]) {
      const damaged = Buffer.from(bytes);
      damaged[at] = (damaged[at] ?? 0) ^ 1;
      expect(() => unseal(secret, "a", damaged.toString("base64"))).toThrow(/damaged/);
    }
  });
});

describe("a join token", () => {
  const used = new Set<string>();
  const useOnce = async (id: string): Promise<boolean> => {
    if (used.has(id)) return false;
    used.add(id);
    return true;
  };
  const refusal = { code: "unauthenticated" };

  it("is good once, for its role and its time", async () => {
    const tokens = new JoinTokens(secret, authority.certificate);
    const token = tokens.issue("host", 60_000, nowMs);
    await expect(tokens.redeem(token, nowMs + 60_000, useOnce)).rejects.toMatchObject(refusal);
    expect(await tokens.redeem(token, nowMs + 59_999, useOnce)).toBe("host");
    await expect(tokens.redeem(token, nowMs, useOnce)).rejects.toMatchObject(refusal);
    expect(isOfToken(token, authority.certificate)).toBe(true);
    expect(isOfToken(token, stranger.certificate)).toBe(false);
  });

  it("is refused altered, cut, or of another secret, and is not used up by that", async () => {
    const tokens = new JoinTokens(secret, authority.certificate);
    const token = tokens.issue("host", 60_000, nowMs);
    const altered = [
      token.replace(".host.", ".gateway."),
      token.replace(/\.(\d+)\./, (_, until: string) => `.${until}0.`),
      token.slice(0, -1),
      token.slice(0, token.lastIndexOf(".")),
      "",
      new JoinTokens(otherSecret, authority.certificate).issue("host", 60_000, nowMs),
    ];
    for (const one of altered)
      await expect(tokens.redeem(one, nowMs, useOnce)).rejects.toMatchObject(refusal);
    expect(await tokens.redeem(token, nowMs, useOnce)).toBe("host");
  });
});
