import { once } from "node:events";
import net, { type Socket } from "node:net";
import { describe, expect, it } from "vitest";
import { sandboxA } from "../testing/fake-gateway.ts";
import { http2Client, open, replyOf } from "../testing/http2-client.ts";
import { Rig, until } from "../testing/rig.ts";

describe("connections that ask nothing", () => {
  const mute = async (port: number, first = ""): Promise<Socket> => {
    const socket = net.connect(port, "127.0.0.1");
    socket.on("error", () => undefined);
    await once(socket, "connect");
    if (first !== "") socket.write(first);
    return socket;
  };
  const head = `POST /v1/exec HTTP/1.1\r\nhost: 127.0.0.1\r\nx-sandbox-id: ${sandboxA}\r\n`;

  it("keep nobody out, whichever listener they came by and whatever they began to send", async () => {
    await using rig = await Rig.start({ limits: { connections: 9 } });
    const answers: (() => void)[] = [];
    rig.onAgent = (_request, response) => answers.push(() => response.end("late"));
    const underWay = rig.ask({ path: "/v1/store" });
    await until(() => answers.length === 1);
    using session = http2Client(rig);
    const stream = replyOf(open(rig, session, { ":path": "/v1/store" }));
    await until(() => answers.length === 2);
    const socket = await rig.connect();
    socket.write(
      `GET /v1/socket HTTP/1.1\r\nhost: ${rig.host()}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n`,
    );
    const [hello] = (await once(socket, "data")) as [Buffer];
    expect(hello.toString()).toContain("101");
    const ended: string[] = [];
    const kinds: [string, () => Promise<Socket>][] = [
      ["plain", () => mute(rig.plainPort)],
      ["half a head", () => mute(rig.plainPort, head)],
      ["half a body", () => mute(rig.plainPort, `${head}content-length: 100\r\n\r\n{`)],
      ["no handshake", () => mute(rig.port)],
      ["TLS", () => rig.connect()],
      [
        "TLS, half a head",
        async () => {
          const half = await rig.connect();
          half.write(head);
          return half;
        },
      ],
    ];
    for (const [kind, open] of kinds) (await open()).once("close", () => ended.push(kind));
    rig.onAgent = undefined;
    for (let request = 0; request < 3; request += 1) {
      expect((await rig.ask({ path: "/v1/store" })).status).toBe(200);
      const shared = { headers: { "x-sandbox-id": sandboxA } };
      expect((await rig.askPlain("/v1/store", shared)).status).toBe(200);
    }
    await until(() => ended.length > 0);
    for (let more = 0; more < 20; more += 1) await mute(more % 2 === 0 ? rig.port : rig.plainPort);
    await until(() => ended.length === kinds.length);
    expect((await rig.ask({ path: "/v1/store" })).status).toBe(200);
    socket.write("still there");
    const [echo] = (await once(socket, "data")) as [Buffer];
    expect(echo.toString()).toContain("still there");
    for (const answer of answers) answer();
    expect((await underWay).body).toBe("late");
    expect((await stream).body).toBe("late");
    for (let more = 0; more < 10; more += 1) await mute(rig.plainPort);
    await until(() => session.destroyed);
  });

  it("nor does a body that goes on after its refusal", async () => {
    await using rig = await Rig.start({ limits: { connections: 2 } });
    const unknown = "sbx-00000000000000000000";
    using session = http2Client(rig, unknown);
    const headers = { ":method": "POST", ":path": "/v1/exec", ":authority": rig.host(unknown) };
    const stream = open(rig, session, headers, { endStream: false });
    stream.write("{");
    const [answer] = (await once(stream, "response")) as [{ ":status": number }];
    expect(answer[":status"]).toBe(404);
    stream.write("and so on");
    for (let more = 0; more < 2; more += 1) await mute(rig.port);
    await until(() => session.destroyed);
  });
});
