/** The agent's end of the channel: who has its key is answered, everybody else gets a failed handshake. */
import { once } from "node:events";
import { request } from "node:http";
import { connect as connectTcp, type Socket } from "node:net";
import { connect as connectTls } from "node:tls";
import { hkdfSync } from "node:crypto";
import { channel } from "@cloche/protocol";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import {
  type AgentFixture,
  bootstrapSecret,
  controlSecret,
  issuer,
  sandboxId,
  startAgent,
  token,
} from "../testing/agent-fixture.ts";
import { channelKeyOf } from "../auth/channel-keys.ts";
import { strangersMax } from "./strangers.ts";

let fixture: AgentFixture;
beforeEach(async () => {
  fixture = await startAgent({ channel: true });
});
afterEach(() => fixture.close());

const dial = (secret: string, identity: string = channel.identity) => {
  const key = channelKeyOf(secret);
  const psk = Buffer.from(hkdfSync("sha256", key, "", channel.labels.preSharedKey, channel.keyBytes));
  const socket = connectTls({
    host: "127.0.0.1",
    port: fixture.port,
    ciphers: channel.cipher,
    pskCallback: () => ({ psk, identity }),
    checkServerIdentity: () => undefined,
  });
  socket.on("error", () => undefined);
  return socket;
};
/** The status, or the code of the error, of one request over the channel of that secret. */
const ask = (secret: string, method: string, path: string, bearer: string, body = {}): Promise<unknown> =>
  new Promise((resolve) => {
    const text = JSON.stringify(body);
    const sent = request(
      {
        createConnection: () => dial(secret),
        method,
        path,
        headers: { authorization: `Bearer ${bearer}`, "content-length": text.length, connection: "close" },
      },
      (response) => {
        response.resume();
        resolve(response.statusCode);
      },
    );
    sent.on("error", (error: NodeJS.ErrnoException) => resolve(error.code));
    sent.end(text);
  });
const noHandshake = /^(ERR_SSL_|EPROTO)/;
const control = "/cloche.guest.v1.GuestService/";
const assign = () =>
  ask(bootstrapSecret, "POST", `${control}Assign`, bootstrapSecret, {
    sandboxId,
    controlSecret,
    issuer,
  });

describe("the channel", () => {
  it("answers who has the key, of now and not of before", async () => {
    expect(await ask(controlSecret, "POST", `${control}GetActivity`, bootstrapSecret)).toMatch(noHandshake);
    expect(await assign()).toBe(200);
    expect(await ask(controlSecret, "POST", `${control}GetActivity`, controlSecret)).toBe(200);
    expect(await ask(controlSecret, "GET", "/v1/store", token())).toBe(200);
    expect(await ask(bootstrapSecret, "GET", "/v1/store", token())).toMatch(noHandshake);
    // Whoever has the channel's key still needs the secret for GuestService: an edge does not have it.
    expect(await ask(controlSecret, "POST", `${control}Shutdown`, token())).toBe(401);
  });

  it("gives nothing to who has no key, and knows no other name of it", async () => {
    await assign();
    const plain = connectTcp(fixture.port, "127.0.0.1");
    plain.write("GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n");
    let heard = Buffer.alloc(0);
    plain.on("data", (chunk: Buffer) => (heard = Buffer.concat([heard, chunk])));
    plain.on("error", () => undefined);
    await once(plain, "close");
    expect(heard.toString("latin1")).not.toContain("HTTP");
    for (const socket of [
      connectTls({ host: "127.0.0.1", port: fixture.port, rejectUnauthorized: false }),
      dial(controlSecret, "cloche-channel-2"),
      dial("a guess"),
    ]) {
      const said = await new Promise((resolve) => {
        socket.once("secureConnect", () => resolve("let in"));
        socket.once("error", (error: NodeJS.ErrnoException) => resolve(error.code));
      });
      expect(said).toMatch(noHandshake);
      socket.destroy();
    }
  });

  it("ends connections of the key before, as a clone has them of its source", async () => {
    await assign();
    const kept = dial(controlSecret);
    await once(kept, "secureConnect");
    const ended = once(kept, "close");
    kept.resume();
    const next = { sandboxId, controlSecret: "third", issuer };
    expect(await ask(controlSecret, "POST", `${control}Assign`, controlSecret, next)).toBe(200);
    await ended;
    expect(await ask(controlSecret, "GET", "/v1/store", token())).toMatch(noHandshake);
  });

  it("lets whoever is inside begin so many handshakes, and no more", async () => {
    await assign();
    const ended = new Set<Socket>();
    const first = connectTcp(fixture.port, "127.0.0.1");
    await once(first, "connect");
    // All from one port, of as many addresses: a port alone does not tell connections apart.
    const from = (index: number) => ({
      port: fixture.port,
      host: "127.0.0.1",
      localAddress: `127.0.0.${index + 2}`,
      localPort: first.localPort,
    });
    const begun = await Promise.all(
      Array.from({ length: strangersMax + 23 }, async (_, index) => {
        const socket = connectTcp(from(index));
        socket.on("error", () => undefined);
        socket.once("close", () => ended.add(socket));
        socket.resume();
        await once(socket, "connect");
        return socket;
      }),
    );
    await expect.poll(() => ended.size).toBe(24);
    // Their places are given back when they end.
    first.destroy();
    for (const socket of begun) socket.destroy();
    const again = () => ask(controlSecret, "GET", "/v1/store", token());
    await expect.poll(again, { timeout: 5_000 }).toBe(200);
  });

  it("resumes no session past its key", async () => {
    await assign();
    const first = dial(controlSecret);
    let session: Buffer | undefined;
    first.on("session", (one: Buffer) => (session ??= one));
    first.write(`GET /v1/store HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${token()}\r\n\r\n`);
    await once(first, "data");
    first.destroy();
    const again = connectTls({
      host: "127.0.0.1",
      port: fixture.port,
      ciphers: channel.cipher,
      rejectUnauthorized: false,
      ...(session && { session }),
    });
    const said = await new Promise((resolve) => {
      again.once("secureConnect", () => resolve("let in"));
      again.once("error", (error: NodeJS.ErrnoException) => resolve(error.code));
    });
    expect(said).toMatch(noHandshake);
  });
});
