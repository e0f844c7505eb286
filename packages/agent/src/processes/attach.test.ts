import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import { limits } from "@cloche/protocol";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { AttachClient } from "../testing/attach-client.ts";
import { type AgentFixture, startAgent, token } from "../testing/agent-fixture.ts";
import { opcodes } from "../web-socket/frames.ts";

let fixture: AgentFixture;
beforeEach(async () => {
  fixture = await startAgent();
  await fixture.assign();
});
afterEach(() => fixture.close());

async function start(body: Record<string, unknown>): Promise<string> {
  const { status, json, text } = await fixture.call("POST", "/v1/processes", { body: { dir: "/", ...body } });
  expect(status, text).toBe(201);
  return json["process_id"] as string;
}
const attach = (id: string, query = "", headers: Record<string, string> = {}): Promise<AttachClient> =>
  AttachClient.to(fixture.port, {
    path: `/v1/processes/${id}/attach${query}`,
    headers: { authorization: `Bearer ${token()}`, ...headers },
  });

describe("attach", () => {
  it("carries input, output and the end", async () => {
    const id = await start({ cmd: ["sh", "-c", "cat; echo over >&2; exit 4"], stdin: "open" });
    const client = await attach(id);
    client.send(0, "hello\n");
    await client.until("the echo", () => client.text(1) === "hello\n");
    client.frame(opcodes.ping, Buffer.from("p"));
    await client.until("a pong", () => client.text(opcodes.pong) === "p");
    client.send(255, Buffer.from([0]));
    expect(await client.closed).toEqual({ code: 1000, reason: "" });
    expect(client.text(2)).toBe("over\n");
    expect(client.status).toMatchObject([
      { process_id: id, exit_code: 4, ended_by: "exit", stdin: "closed" },
    ]);
  });

  it("goes on from where a reader was, and tells it what is gone", async () => {
    const id = await start({
      cmd: ["sh", "-c", "printf 0123456789; printf e >&2; sleep 100"],
      output_limit_bytes: 4,
    });
    const first = await attach(id, "?after_stdout=2");
    await first.until("the rest", () => first.text(1) === "6789" && first.text(2) === "e");
    expect(first.status).toEqual([{ gap: { stream: "stdout", from: 2, to: 6 } }]);
    first.cut();
    const second = await attach(id, "?after_stdout=9&after_stderr=1");
    await second.until("the last byte", () => second.text(1) === "9");
    await fixture.call("DELETE", `/v1/processes/${id}`);
    expect(await second.closed).toMatchObject({ code: 1000 });
    expect(second.text(2)).toBe("");
    expect(second.status).toMatchObject([{ ended_by: "delete" }]);
  });

  it("to a process that has ended replays it and says good-bye", async () => {
    const id = await start({ cmd: ["echo", "gone"] });
    await fixture.call("POST", `/v1/processes/${id}/wait`);
    const client = await attach(id);
    expect(await client.closed).toMatchObject({ code: 1000 });
    expect(client.text(1)).toBe("gone\n");
  });

  it("takes messages in parts", async () => {
    const id = await start({ cmd: ["cat"], stdin: "open" });
    const client = await attach(id);
    client.frame(opcodes.binary, Buffer.from("\0one "), false);
    client.frame(opcodes.ping, Buffer.alloc(0));
    client.frame(opcodes.continuation, Buffer.from("two"), false);
    client.frame(opcodes.continuation, Buffer.from(" three"));
    await client.until("all of it", () => client.text(1) === "one two three");
    client.cut();
  });

  it("holds back a client whose process does not read, and nobody else", async () => {
    const id = await start({ cmd: ["sleep", "1000"], stdin: "open" });
    const client = await attach(id);
    const piece = Buffer.alloc(500_000);
    const most = 100;
    let sent = 0;
    const drains = () => Promise.race([once(client.socket, "drain").then(() => true), sleep(1_000, false)]);
    for (; sent < most; sent += 1) if (!client.send(0, piece) && !(await drains())) break;
    // What lies in between, in pipes and sockets, and no more.
    expect(sent).toBeLessThan(most / 2);
    const other = await attach(await start({ cmd: ["cat"], stdin: "open" }));
    other.send(0, "x");
    await other.until("an echo", () => other.text(1) === "x");
    other.cut();
    client.cut();
    await fixture.call("DELETE", `/v1/processes/${id}`);
  });

  it("takes much input at the pace of its process", async () => {
    const client = await attach(await start({ cmd: ["sh", "-c", "sleep 1; wc -c"], stdin: "open" }));
    const piece = Buffer.alloc(500_000);
    for (let sent = 0; sent < 20; sent += 1) if (!client.send(0, piece)) await once(client.socket, "drain");
    client.send(255, Buffer.from([0]));
    await client.closed;
    expect(Number(client.text(1))).toBe(20 * 500_000);
  });

  it.each([
    ["text", (client: AttachClient) => client.frame(opcodes.text, Buffer.from("ls\n")), 1003, "binary"],
    ["an unknown channel", (client: AttachClient) => client.send(7, "x"), 1008, "channel 7"],
    ["an output channel", (client: AttachClient) => client.send(1, "x"), 1008, "channel 1"],
    [
      "an empty message",
      (client: AttachClient) => client.frame(opcodes.binary, Buffer.alloc(0)),
      1008,
      "channel",
    ],
    [
      "a resize without a terminal",
      (client: AttachClient) => client.send(4, '{"Width":1,"Height":1}'),
      1008,
      "terminal",
    ],
    ["a resize that is no JSON", (client: AttachClient) => client.send(4, "{"), 1008, "JSON"],
    ["input that was not opened", (client: AttachClient) => client.send(0, "x"), 1008, "stdin"],
    ["a close of nothing", (client: AttachClient) => client.send(255, ""), 1008, "255"],
    [
      "too much at once",
      (client: AttachClient) => client.send(0, Buffer.alloc(limits.processMessageBytes)),
      1009,
      "larger",
    ],
    [
      "a continuation of nothing",
      (client: AttachClient) => client.frame(opcodes.continuation, Buffer.from("x")),
      1002,
      "",
    ],
    [
      "a frame without a mask",
      (client: AttachClient) => client.socket.write(Buffer.from([0x82, 1, 0])),
      1002,
      "mask",
    ],
    ["a reserved type", (client: AttachClient) => client.frame(5, Buffer.from("x")), 1002, "type 5"],
  ] as const)("closes on %s, and the process goes on", async (_what, send, code, says) => {
    const id = await start({ cmd: ["sleep", "100"] });
    const client = await attach(id);
    send(client);
    expect(await client.closed).toMatchObject({ code, reason: expect.stringContaining(says) });
    expect((await fixture.call("GET", `/v1/processes/${id}`)).json).toMatchObject({ status: "running" });
    await fixture.call("DELETE", `/v1/processes/${id}`);
  });

  it("lets go of half a connection, and of one that is lost in a frame", async () => {
    const id = await start({ cmd: ["sleep", "100"] });
    for (const lose of [
      (client: AttachClient) => void client.socket.end(),
      (client: AttachClient) => void client.socket.end(Buffer.from([0x82, 0xfe])),
      (client: AttachClient) => client.cut(),
    ]) {
      const client = await attach(id);
      lose(client);
      expect(await client.closed).toBeUndefined();
    }
    // None of them is counted any more.
    const clients = await Promise.all(Array.from({ length: limits.processReaders }, () => attach(id)));
    expect((await attach(id)).head).toContain("HTTP/1.1 429");
    for (const client of clients) client.cut();
  });

  it("answers a good-bye", async () => {
    const id = await start({ cmd: ["sleep", "100"] });
    const client = await attach(id);
    client.frame(opcodes.close, Buffer.from([0x03, 0xe8]));
    expect(await client.closed).toMatchObject({ code: 1000 });
  });

  it("is refused before it is open where the request is wrong", async () => {
    const id = await start({ cmd: ["sleep", "100"] });
    const path = `/v1/processes/${id}/attach`;
    const headers = { authorization: `Bearer ${token()}` };
    const heads = await Promise.all([
      AttachClient.to(fixture.port, { path, headers: { authorization: "Bearer x" } }),
      AttachClient.to(fixture.port, { path, headers, subprotocols: ["v4.channel.k8s.io"] }),
      AttachClient.to(fixture.port, { path, headers, subprotocols: [] }),
      AttachClient.to(fixture.port, { path, headers: { ...headers, "sec-websocket-version": "12" } }),
      AttachClient.to(fixture.port, { path, headers: { ...headers, "sec-websocket-key": "short" } }),
      AttachClient.to(fixture.port, { path: `${path}?after_stdout=x`, headers }),
      AttachClient.to(fixture.port, { path: "/v1/processes/proc-x/attach", headers }),
      AttachClient.to(fixture.port, { path: `${path}/more`, headers }),
    ]);
    expect(heads.map(({ head }) => head.slice(9, 12))).toEqual([
      "401",
      "400",
      "400",
      "400",
      "400",
      "400",
      "404",
      "404",
    ]);
    for (const one of heads) one.cut();
    await fixture.call("DELETE", `/v1/processes/${id}`);
  });

  it("does not keep the sandbox awake while nobody types", async () => {
    const id = await start({ cmd: ["cat"], stdin: "open" });
    const client = await attach(id);
    const activity = async () => (await fixture.control("GetActivity")).json;
    expect((await activity())["openRequests"]).toBe(0);
    const before = Number((await activity())["lastActivityUnixMs"]);
    await sleep(50);
    expect(Number((await activity())["lastActivityUnixMs"])).toBe(before);
    client.send(0, "x");
    await client.until("the echo", () => client.text(1) === "x");
    expect(Number((await activity())["lastActivityUnixMs"])).toBeGreaterThan(before);
    client.cut();
  });
});
