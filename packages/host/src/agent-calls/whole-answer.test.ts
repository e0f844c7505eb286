import { once } from "node:events";
import { request } from "node:http";
import { type AddressInfo, createServer, type Server, type Socket } from "node:net";
import { afterEach, describe, expect, it } from "vitest";
import { type AnswerLimits, wholeAnswer } from "./whole-answer.ts";

const head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
/** A deadline that no test reaches. Tests of the deadline itself use a shorter one. */
const long = 600_000;

/** Behaviours of a peer after it has read a call's head. */
const peers: Record<string, (socket: Socket) => void> = {
  "answers nothing": () => undefined,
  "begins a head": (socket) => void socket.write("HTTP/1.1 2"),
  "answers a head alone": (socket) => void socket.write(`${head}content-length: 20\r\n\r\n`),
  "answers half a body": (socket) => void socket.write(`${head}content-length: 20\r\n\r\n{"a":`),
  "answers half a chunked body": (socket) =>
    void socket.write(`${head}transfer-encoding: chunked\r\n\r\n5\r\n{"a":\r\n`),
  "lets a body trickle": (socket) => {
    socket.write(`${head}content-length: 1000000\r\n\r\n`);
    const timer = setInterval(() => socket.write(" "), 5);
    socket.once("close", () => clearInterval(timer));
  },
  "lets a head trickle": (socket) => {
    socket.write(`${head}x-long: `);
    const timer = setInterval(() => socket.write("x"), 5);
    socket.once("close", () => clearInterval(timer));
  },
};

describe("wholeAnswer", () => {
  let server: Server;
  afterEach(() => void server.close());

  const ask = async (peer: (socket: Socket) => void, limits: Partial<AnswerLimits>) => {
    server = createServer((socket) => {
      socket.on("error", () => undefined);
      socket.once("data", () => peer(socket));
    }).listen(0, "127.0.0.1");
    await once(server, "listening");
    const { port } = server.address() as AddressInfo;
    const call = request({ host: "127.0.0.1", port, method: "POST", agent: false });
    const answer = wholeAnswer(call, "{}", { deadlineMs: long, bytes: 1_000, ...limits });
    return { call, answer };
  };

  for (const [what, peer] of Object.entries(peers)) {
    it(`has a deadline where the peer ${what}, and closes the connection`, async () => {
      const { call, answer } = await ask(peer, { deadlineMs: 60 });
      await expect(answer).rejects.toThrow("no whole answer in 60 ms");
      expect(call.destroyed).toBe(true);
    });

    it(`ends at once when it is cut off while the peer ${what}`, async () => {
      const cut = new AbortController();
      const { answer } = await ask(
        (socket) => {
          peer(socket);
          setImmediate(() => cut.abort(new Error("the machine is to be destroyed")));
        },
        { signal: cut.signal },
      );
      await expect(answer).rejects.toThrow("the machine is to be destroyed");
    });

    it(`fails where the peer ${what} and then ends the connection`, async () => {
      const { answer } = await ask((socket) => {
        peer(socket);
        setImmediate(() => socket.destroy());
      }, {});
      await expect(answer).rejects.toThrow();
    });
  }

  it("refuses an answer that is too long", async () => {
    const { answer } = await ask((socket) => {
      socket.write(`${head}content-length: 2000\r\n\r\n${" ".repeat(2_000)}`);
    }, {});
    await expect(answer).rejects.toThrow("longer than 1000 bytes");
  });

  it.each([
    ["informational answers", "HTTP/1.1 103 Early Hints\r\n\r\n", "informational"],
    ["empty lines", "\r\n".repeat(8_000), "bytes came for one answer"],
    ["chunks of one byte", "1\r\n \r\n".repeat(100_000), "is longer than 1000 bytes"],
    ["extensions of chunks", `1;${"e".repeat(8_000)}\r\n \r\n`.repeat(100), "bytes came for one answer"],
  ])("refuses %s without end, long before the deadline", async (what, piece, why) => {
    const { call, answer } = await ask((socket) => {
      if (what.includes("chunks")) socket.write(`${head}transfer-encoding: chunked\r\n\r\n`);
      const flood = (): void => {
        while (!socket.destroyed && socket.write(piece));
        if (!socket.destroyed) socket.once("drain", flood);
      };
      flood();
    }, {});
    await expect(answer).rejects.toThrow(why);
    expect(call.destroyed).toBe(true);
  });

  it("takes a whole answer", async () => {
    const { answer } = await ask((socket) => void socket.write(`${head}content-length: 2\r\n\r\n{}`), {});
    expect(await answer).toEqual({ status: 200, text: "{}" });
  });
});
