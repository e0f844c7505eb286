/** Bytes that one side sent and the other does not take are bounded, and what goes on is not cut. */
import { once } from "node:events";
import { describe, expect, it, test } from "vitest";
import { askHttp2, http2Client, open } from "./testing/http2-client.ts";
import { Rig, until } from "./testing/rig.ts";

const mebibyte = 1024 * 1024;

describe.each(["heldOfSandbox", "heldOfTeam", "heldOfEdge"] as const)("beyond %s", (bound) => {
  it("uploads by HTTP/2 are cut that nobody reads, and others go on", async () => {
    await using rig = await Rig.start({ limits: { [bound]: 2 * mebibyte } });
    let unread = 0;
    rig.onAgent = (request, response) => {
      if (request.url === "/v1/unread") unread += 1;
      else request.pipe(response);
      if (request.url === "/v1/unread") request.pause();
    };
    using session = http2Client(rig);
    // More than the kernel's buffers take.
    const large = Buffer.alloc(12 * mebibyte);
    const streams = Array.from({ length: 16 }, () => {
      const stream = open(rig, session, { ":method": "POST", ":path": "/v1/unread" });
      stream.write(large);
      return stream;
    });
    await until(() => unread > 0);
    using other = http2Client(rig);
    const sent = Buffer.alloc(8 * mebibyte, "x");
    const answer = askHttp2(rig, other, { ":method": "POST", ":path": "/v1/echo" }, sent);
    await until(() => streams.filter(({ closed }) => closed).length > 0);
    expect((await answer).body).toHaveLength(sent.length);
    expect(streams.some(({ closed }) => !closed)).toBe(true);
  });

  it("upgraded connections are cut that do not read", async () => {
    await using rig = await Rig.start({ limits: { [bound]: mebibyte / 4 } });
    rig.onUpgraded = (socket) => void socket.write(Buffer.alloc(32 * mebibyte));
    const readers = await Promise.all(Array.from({ length: 16 }, () => rig.connect()));
    let cut = 0;
    for (const socket of readers) {
      socket.once("close", () => (cut += 1));
      socket.pause();
      socket.write(
        `GET /v1/ws HTTP/1.1\r\nhost: ${rig.host()}\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n`,
      );
    }
    await new Promise((resolve) => setTimeout(resolve, 1_000));
    for (const socket of readers) socket.resume();
    await until(() => cut >= 8);
  });

  it("connections of HTTP/1.1 are cut that do not read their answers", async () => {
    await using rig = await Rig.start({ limits: { [bound]: mebibyte / 4 } });
    rig.onAgent = (_request, response) => void response.end(Buffer.alloc(32 * mebibyte));
    const readers = await Promise.all(Array.from({ length: 16 }, () => rig.connect()));
    for (const socket of readers) {
      socket.pause();
      socket.write(`GET /v1/large HTTP/1.1\r\nhost: ${rig.host()}\r\n\r\n`);
    }
    let cut = 0;
    for (const socket of readers) socket.once("close", () => (cut += 1));
    await new Promise((resolve) => setTimeout(resolve, 1_000));
    for (const socket of readers) socket.resume();
    await until(() => cut >= 8);
  });
});

test("a connection may send little before a body of it is read", async () => {
  await using rig = await Rig.start();
  rig.onAgent = (request, response) => void request.resume().once("end", () => response.end("ok"));
  using session = http2Client(rig);
  await once(session, "remoteSettings");
  // Whatever the edge sent at the beginning is here before this answer.
  await new Promise((resolve) => session.ping(resolve));
  expect(session.state.remoteWindowSize).toBeLessThanOrEqual(64 * 1024);
  await askHttp2(rig, session, { ":method": "POST", ":path": "/v1/x" }, Buffer.alloc(1_000));
  await until(() => (session.state.remoteWindowSize ?? 0) > mebibyte);
});
