// Run inside a sandbox's (or a fake host's) namespace: tries one thing and prints one JSON answer.
//   serve <address> <port> [tcp|udp]     echoes until stdin ends; prints {"listening":true} first
//   tcp <address> <port> [from]          {"connected":bool,"peer":text}: the peer sends the address it sees
//   udp <address> <port> [from]          {"answered":bool,"peer":text}
//   dns <address> 53                     answers every question over UDP and TCP with the address $PUBLIC (11.9.9.9); alias.*
//                                        by an alias of $OTHER (11.9.9.8), private.* with 10.77.0.9, stray.* with a
//                                        record of another name
//   resolve <server> 53 [tcp|udp:name]   {"addresses":[…],"rcode":number}; name: cloche.test by default
//   open <address> <port> <count>        {"opened":number}: TCP connections opened one after another, held until stdin ends
//   churn <address> <port> <count>       {"opened":number}: the same, each reset before the next
//   close <address> <port> <count>       {"opened":number}: the same, each closed by both sides before the next
//   hold <address> <port>                one connection: a line on stdin is echoed back as {"echo":text}
import { createSocket } from "node:dgram";
import { connect, createServer } from "node:net";
import { createInterface } from "node:readline";

/** Denials are said, mostly: only what is swallowed waits for so long. */
const WAIT_MS = 3_000;
const [mode = "", address = "", portText = "", extra] = process.argv.slice(2);
const port = Number(portText);
const say = (answer: unknown) => console.log(JSON.stringify(answer));
const named = (name: string) =>
  Buffer.concat([
    ...name.split(".").map((label) => Buffer.from([label.length, ...Buffer.from(label)])),
    Buffer.alloc(1),
  ]);
const finish = (answer: unknown) => {
  say(answer);
  process.exit(0);
};

if (mode === "serve") {
  createServer((socket) => {
    socket.on("error", () => {});
    socket.write(`${socket.remoteAddress}\n`);
    socket.pipe(socket);
  }).listen(port, address, () => {
    const udp = createSocket("udp4");
    udp.on("message", (_, from) => udp.send(from.address, from.port, from.address));
    udp.bind(port, address, () => say({ listening: true }));
  });
  process.stdin.on("end", () => process.exit(0)).resume();
} else if (mode === "tcp") {
  const socket = connect({ host: address, port, ...(extra ? { localAddress: extra } : {}) });
  socket.on("data", (data) => finish({ connected: true, peer: data.toString().trim() }));
  socket.on("error", (error: NodeJS.ErrnoException) => finish({ connected: false, why: error.code }));
  setTimeout(() => finish({ connected: false, why: "timeout" }), WAIT_MS);
} else if (["open", "churn", "close"].includes(mode)) {
  let opened = 0;
  for (let tried = 0; tried < Number(extra); tried += 1) {
    const socket = connect({ host: address, port });
    const isOpen = await new Promise<boolean>((resolve) => {
      socket.once("connect", () => resolve(true));
      socket.on("error", () => resolve(false));
      // Of many refusals some are dropped silently.
      setTimeout(() => resolve(false), 50).unref();
    });
    if (!isOpen) socket.destroy();
    if (isOpen) opened += 1;
    if (mode === "churn") socket.resetAndDestroy();
    if (mode === "close" && isOpen)
      await new Promise((resolve) => void socket.once("close", resolve).resume().end());
  }
  say({ opened });
  process.stdin.on("end", () => process.exit(0)).resume();
} else if (mode === "peers") {
  const socket = createSocket("udp4");
  socket.bind(0, () => {
    for (let peer = 0; peer < Number(extra); peer += 1) socket.send("hi", port + peer, address);
    setTimeout(() => say({ opened: Number(extra) }), 500);
  });
  process.stdin.on("end", () => process.exit(0)).resume();
} else if (mode === "udp") {
  const socket = createSocket("udp4");
  socket.on("error", (error: NodeJS.ErrnoException) => finish({ answered: false, why: error.code }));
  socket.on("message", (data) => finish({ answered: true, peer: data.toString("latin1") }));
  socket.bind(0, extra ?? "0.0.0.0", () =>
    socket.send(Buffer.from(process.env["PAYLOAD"] ?? "hi", "latin1"), port, address),
  );
  setTimeout(() => finish({ answered: false, why: "timeout" }), WAIT_MS);
} else if (mode === "dns") {
  const record = (owner: Buffer, type: number, data: Buffer) =>
    Buffer.concat([owner, Buffer.from([0, type, 0, 1, 0, 0, 0, 60, 0, data.length]), data]);
  const QUESTION = Buffer.from([0xc0, 12]);
  const bytesOf = (text: string) => Buffer.from(text.split(".").map(Number));
  const PUBLIC = bytesOf(process.env["PUBLIC"] ?? "11.9.9.9");
  const OTHER = bytesOf(process.env["OTHER"] ?? "11.9.9.8");
  const recordsFor = (name: string) => {
    if (name.startsWith("alias."))
      return [record(QUESTION, 5, named("far.away.test")), record(named("far.away.test"), 1, OTHER)];
    if (name.startsWith("private.")) return [record(QUESTION, 1, Buffer.from([10, 77, 0, 9]))];
    if (name.startsWith("stray.")) return [record(named("www.evil.test"), 1, PUBLIC)];
    return [record(QUESTION, 1, PUBLIC)];
  };
  const reply = (query: Buffer) => {
    const end = query.indexOf(0, 12);
    const records = recordsFor(query.toString("latin1", 13, end).replaceAll(/[\0-\x20]/g, "."));
    const head = Buffer.from(query);
    head.writeUInt16BE(0x8180, 2);
    head.writeUInt16BE(records.length, 6);
    head.writeUInt16BE(0, 10);
    return Buffer.concat([head.subarray(0, end + 5), ...records]);
  };
  const udp = createSocket("udp4");
  udp.on("message", (query, from) => udp.send(reply(query), from.port, from.address));
  createServer((socket) => {
    socket.on("error", () => {});
    socket.on("data", (data) => {
      const answer = reply(data.subarray(2));
      socket.write(Buffer.concat([Buffer.from([0, answer.length]), answer]));
    });
  }).listen(port, address, () => udp.bind(port, address, () => say({ listening: true })));
  process.stdin.on("end", () => process.exit(0)).resume();
} else if (mode === "resolve") {
  const [transport, name = "cloche.test"] = (extra ?? "udp").split(":");
  const header = Buffer.from("123401000001000000000000", "hex");
  const question = Buffer.concat([header, named(name), Buffer.from([0, 1, 0, 1])]);
  const addressIn = (answer: Buffer) => [...answer.subarray(-4)].join(".");
  if (transport === "tcp") {
    const socket = connect({ host: address, port }, () =>
      socket.write(Buffer.concat([Buffer.from([0, question.length]), question])),
    );
    socket.on("data", (data) => finish({ addresses: [addressIn(data)] }));
    socket.on("error", (error) => finish({ addresses: [], why: error.message }));
  } else {
    const udp = createSocket("udp4");
    udp.on("message", (data) =>
      finish({ addresses: data.readUInt16BE(6) > 0 ? [addressIn(data)] : [], rcode: data.readUInt8(3) & 15 }),
    );
    udp.send(question, port, address);
  }
  setTimeout(() => finish({ addresses: [], why: "timeout" }), WAIT_MS);
} else if (mode === "hold") {
  const socket = connect({ host: address, port });
  let waiting: NodeJS.Timeout | undefined;
  socket.on("error", (error) => finish({ error: error.message }));
  createInterface({ input: socket }).on("line", (line) => {
    clearTimeout(waiting);
    say({ echo: line });
  });
  createInterface({ input: process.stdin })
    .on("line", (line) => {
      socket.write(`${line}\n`);
      waiting = setTimeout(() => say({ echo: null }), WAIT_MS);
    })
    .on("close", () => process.exit(0));
}
