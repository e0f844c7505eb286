import { createSocket, Socket as UdpSocket } from "node:dgram";
import { once } from "node:events";
import { connect, createServer, type Socket } from "node:net";
import { afterEach, beforeEach, describe, expect, it, onTestFinished, vi } from "vitest";
import { rcodeRefused, rcodeServerFailure, refusal } from "./dns-message.ts";
import { dnsLimits, DnsForwarder, type DnsForwarderOptions } from "./dns-forwarder.ts";

const loopback = "127.0.0.1";

function query(name: string, id = 7): Buffer {
  return Buffer.from([
    id >> 8,
    id & 255,
    1,
    0,
    0,
    1,
    0,
    0,
    0,
    0,
    0,
    0,
    name.length,
    ...Buffer.from(name),
    0,
    0,
    1,
    0,
    1,
  ]);
}

describe("DNS forwarder", () => {
  let upstream: UdpSocket;
  let asked: Buffer[];
  let answer: (message: Buffer) => Buffer | undefined;
  let client: UdpSocket;
  const open: DnsForwarder[] = [];

  beforeEach(async () => {
    asked = [];
    answer = (message) => {
      const copy = Buffer.from(message);
      copy.writeUInt8(0x81, 2);
      return copy;
    };
    upstream = createSocket("udp4");
    upstream.on("message", (message, from) => {
      asked.push(message);
      const said = answer(message);
      if (said) upstream.send(said, from.port, from.address);
    });
    upstream.bind(0, loopback);
    await once(upstream, "listening");
    client = createSocket("udp4");
    client.bind(0, loopback);
    await once(client, "listening");
  });
  afterEach(async () => {
    for (const forwarder of open.splice(0)) await forwarder.close();
    upstream.close();
    client.close();
  });

  const start = async (options: Partial<DnsForwarderOptions> = {}) => {
    const forwarder = new DnsForwarder({
      address: loopback,
      resolvers: async () => [loopback],
      upstreamPort: upstream.address().port,
      slotOf: () => 1,
      now: () => 0,
      ...options,
    });
    open.push(forwarder);
    return forwarder.listen();
  };
  const ask = async (port: number, message: Buffer): Promise<Buffer> => {
    client.send(message, port, loopback);
    const [said] = (await once(client, "message")) as [Buffer];
    return said;
  };

  it("holds nothing when the port it is told is taken for one of UDP and TCP", async () => {
    const { port } = client.address();
    const resolvers = async (): Promise<string[]> => [];
    const forwarder = new DnsForwarder({ address: loopback, port, resolvers, slotOf: () => 1 });
    await expect(forwarder.listen()).rejects.toThrow("EADDRINUSE");
    const free = createServer().listen(port, loopback);
    await once(free, "listening");
    free.close();
  });

  it("passes the answer back under the asker's id, and asks under another", async () => {
    const port = await start();
    const ids = new Set<number>();
    for (let i = 0; i < 8; i++) {
      expect((await ask(port, query("a", 7))).readUInt16BE(0)).toBe(7);
      ids.add(asked.at(-1)?.readUInt16BE(0) ?? 0);
    }
    expect(ids.size).toBeGreaterThan(1);
  });

  it("refuses what the filter refuses, without asking", async () => {
    const port = await start({
      policy: {
        before: (slot, { name }, asking) =>
          slot === 1 && name === "secret" ? refusal(asking, rcodeRefused) : undefined,
        after: async (_slot, _question, _query, said) => said,
      },
    });
    expect((await ask(port, query("Secret"))).readUInt8(3) & 15).toBe(5);
    expect(asked).toEqual([]);
    expect((await ask(port, query("other"))).readUInt8(3) & 15).toBe(0);
  });

  it("takes no forged answer, and asks the next resolver when one is silent", async () => {
    answer = (message) => {
      const forged = Buffer.from(message);
      forged.writeUInt8(0x81, 2);
      forged.writeUInt16BE((message.readUInt16BE(0) + 1) & 0xffff, 0);
      return asked.length === 1
        ? forged
        : Buffer.concat([message.subarray(0, 2), Buffer.from([0x81]), message.subarray(3)]);
    };
    const port = await start({ resolvers: async () => [loopback, loopback] });
    expect((await ask(port, query("a"))).readUInt8(3) & 15).toBe(0);
    expect(asked.length).toBe(2);
  });

  it.each([
    ["FORMERR", 1, 2, 0],
    ["SERVFAIL", 2, 2, 0],
    ["NOTIMP", 4, 2, 0],
    ["REFUSED", 5, 2, 0],
    ["NOTAUTH", 9, 2, 0],
    ["a referral to other servers", "referral", 2, 0],
    ["NOERROR without an address", 0, 1, 0],
    ["NXDOMAIN", 3, 1, 3],
    ["YXDOMAIN", 6, 1, 6],
  ] as const)(
    "asks the next resolver when one says %s, unless that is an answer",
    async (_what, first, asks, wanted) => {
      answer = (message) => {
        const said = Buffer.from(message);
        const rcode = asked.length > 1 || first === "referral" ? 0 : first;
        said.writeUInt8(0x81, 2);
        said.writeUInt8(asked.length === 1 && first === "referral" ? 0 : 0x80 | rcode, 3);
        return said;
      };
      const port = await start({ resolvers: async () => [loopback, loopback] });
      expect((await ask(port, query("a"))).readUInt8(3) & 15).toBe(wanted);
      expect(asked.length).toBe(asks);
    },
  );

  it("asks the next resolver when one cannot be reached", async () => {
    // As for an IPv6 resolver on a host without a route to it, the kernel refuses at once.
    const port = await start({ resolvers: async () => ["255.255.255.255", loopback] });
    expect((await ask(port, query("a"))).readUInt8(3) & 15).toBe(0);
    expect(asked.length).toBe(1);
  });

  it("takes no question from port 0, which a sandbox can send and no answer reaches", async () => {
    const bind = vi.spyOn(UdpSocket.prototype, "bind");
    onTestFinished(() => bind.mockRestore());
    const port = await start();
    const [listening] = bind.mock.contexts as UdpSocket[];
    const from = { address: loopback, port: 0, family: "IPv4", size: 0 } as const;
    listening?.emit("message", query("a"), from);
    expect((await ask(port, query("b"))).readUInt8(3) & 15).toBe(0);
    expect(asked.map((message) => message.includes("b"))).toEqual([true]);
  });

  it("goes on after a question whose handling failed", async () => {
    const failures: unknown[] = [];
    let asks = 0;
    const port = await start({
      slotOf: () => {
        if ((asks += 1) === 1) throw new Error("no slots");
        return 1;
      },
      onError: (error) => void failures.push(error),
    });
    client.send(query("a"), port, loopback);
    expect((await ask(port, query("b"))).readUInt8(3) & 15).toBe(0);
    expect(failures).toMatchObject([{ message: "no slots" }]);
  });

  it("passes on what the last resolver says when none can answer", async () => {
    answer = (message) => refusal(message, rcodeRefused);
    const port = await start({ resolvers: async () => [loopback, loopback] });
    expect((await ask(port, query("a"))).readUInt8(3) & 15).toBe(rcodeRefused);
    expect(asked.length).toBe(2);
  });

  it("answers nobody but sandboxes, and no sandbox above its rate", async () => {
    const port = await start({ slotOf: () => undefined });
    client.send(query("a"), port, loopback);
    let datagrams = 0;
    const burst = dnsLimits.queriesPerSecond * dnsLimits.burstSeconds;
    const limited = await start({ slotOf: () => (++datagrams <= burst + 1 ? 1 : 2) });
    for (let i = 0; i < burst; i++) await ask(limited, query("a"));
    client.send(query("dropped"), limited, loopback);
    // Datagrams are served in order: once the other sandbox has its answer, the earlier one was judged too.
    expect((await ask(limited, query("later"))).includes("later")).toBe(true);
    expect(asked.filter((message) => message.includes("dropped"))).toEqual([]);
  });

  /** The slot of each datagram that comes, in order: `counts` datagrams of each slot. */
  const inTurn = (...counts: [slot: number, datagrams: number][]): (() => number) => {
    const slots = counts.flatMap(([slot, datagrams]) => Array<number>(datagrams).fill(slot));
    return () => slots.shift() ?? 0;
  };

  it("lets a team's sandboxes wait for so many answers together, and takes no place of another team", async () => {
    const { ofSlot, ofTeam } = dnsLimits.pending;
    const full = ofTeam / ofSlot;
    const slots = Array.from({ length: full }, (_, index): [number, number] => [index + 1, ofSlot]);
    const port = await start({
      slotOf: inTurn(...slots, [100, 1], [101, 1]),
      teamOf: (slot) => (slot === 101 ? "b" : "a"),
    });
    answer = (message) => (message.includes("other") ? message.fill(0x81, 2, 3) : undefined);
    for (let i = 0; i < ofTeam; i += 1) {
      client.send(query("a"), port, loopback);
      // The socket's buffer has room for some hundred datagrams.
      if (i % 50 === 0) await expect.poll(() => asked.length).toBe(i + 1);
    }
    await expect.poll(() => asked.length).toBe(ofTeam);
    expect((await ask(port, query("refused"))).readUInt8(3) & 15).toBe(2);
    expect((await ask(port, query("other"))).readUInt8(3) & 15).toBe(0);
    expect(asked.length).toBe(ofTeam + 1);
  });

  it("answers no team above its rate, whatever its sandboxes", async () => {
    const ofSlot = dnsLimits.queriesPerSecond * dnsLimits.burstSeconds;
    const ofTeam = dnsLimits.queriesPerSecondOfTeam * dnsLimits.burstSeconds;
    const full = ofTeam / ofSlot;
    const slots = Array.from({ length: full }, (_, index): [number, number] => [index + 1, ofSlot]);
    const port = await start({
      slotOf: inTurn(...slots, [100, 1], [101, 1]),
      teamOf: (slot) => (slot === 101 ? "b" : "a"),
      policy: {
        before: (_slot, _question, asking) => refusal(asking, rcodeRefused),
        after: async () => Buffer.alloc(0),
      },
    });
    for (let i = 0; i < ofTeam; i++) await ask(port, query("a"));
    client.send(query("dropped"), port, loopback);
    expect((await ask(port, query("later"))).includes("later")).toBe(true);
  });

  it("keeps so many TCP connections of a team's sandboxes, and one for another team", async () => {
    const { ofSlot, ofTeam } = dnsLimits.connections;
    const slots = Array.from({ length: ofTeam / ofSlot }, (_, index): [number, number] => [
      index + 1,
      ofSlot,
    ]);
    const port = await start({
      slotOf: inTurn(...slots, [100, 1], [101, 1]),
      teamOf: (slot) => (slot === 101 ? "b" : "a"),
    });
    const sockets: Socket[] = [];
    const dial = async (): Promise<{ isOpen: () => boolean }> => {
      const socket = connect(port, loopback).on("error", () => undefined);
      await once(socket, "connect");
      let open = true;
      socket.on("close", () => (open = false)).resume();
      sockets.push(socket);
      return { isOpen: () => open };
    };
    for (let i = 0; i < ofTeam; i += 1) await dial();
    const refused = await dial();
    await expect.poll(() => refused.isOpen()).toBe(false);
    const other = await dial();
    expect(sockets.filter(({ destroyed }) => !destroyed).length).toBe(ofTeam + 1);
    expect(other.isOpen()).toBe(true);
    for (const socket of sockets) socket.destroy();
  });

  it("is silent when it is closed before an answer is there", async () => {
    const resolvers = Promise.withResolvers<string[]>();
    let asks = 0;
    const port = await start({
      resolvers: async () => {
        asks += 1;
        return await resolvers.promise;
      },
    });
    client.send(query("a"), port, loopback);
    await expect.poll(() => asks).toBe(1);
    for (const forwarder of open.splice(0)) await forwarder.close();
    resolvers.resolve([]);
    // A rejection that nobody handles fails this run.
    await new Promise((resolve) => setImmediate(resolve));
  });

  it("says that it failed when an answer's addresses cannot be let through", async () => {
    const port = await start({
      policy: { before: () => undefined, after: async () => await Promise.reject(new Error("no such set")) },
    });
    expect((await ask(port, query("a"))).readUInt8(3) & 15).toBe(rcodeServerFailure);
    const socket = connect(port, loopback);
    socket.write(Buffer.concat([Buffer.from([0, query("a").length]), query("a")]));
    const [said] = (await once(socket, "data")) as [Buffer];
    expect(said.readUInt8(5) & 15).toBe(rcodeServerFailure);
    socket.destroy();
  });

  it("holds no answers for a sandbox that reads none", async () => {
    const questions = dnsLimits.queriesPerSecond * dnsLimits.burstSeconds;
    let settled = 0;
    const before = (_slot: number, _question: unknown, asking: Buffer): Buffer => {
      settled += 1;
      return Buffer.concat([asking, Buffer.alloc(60_000)]);
    };
    const port = await start({
      policy: { before, after: async (_slot, _question, _query, said) => said },
    });
    const mute = connect(port, loopback).pause();
    const framed = Buffer.concat([Buffer.from([0, query("a").length]), query("a")]);
    // 24 MB of answers, many times what the kernel takes.
    mute.write(Buffer.concat(Array.from({ length: questions }, () => framed)));
    await expect.poll(() => settled).toBeGreaterThan(0);
    await new Promise((resolve) => setTimeout(resolve, 300));
    expect(settled).toBeLessThan(questions / 2);
    await readAll(mute, questions);
    expect(settled).toBe(questions);
    mute.destroy();
  });
});

/** Reads until `count` framed answers came. */
async function readAll(socket: Socket, count: number): Promise<void> {
  let [bytes, wanted] = [0, count * (60_000 + query("a").length + 2)];
  socket.on("data", (chunk) => (bytes += chunk.length)).resume();
  await expect.poll(() => bytes, { timeout: 10_000 }).toBe(wanted);
}
