import { type ChildProcessWithoutNullStreams, spawn } from "node:child_process";
import { once } from "node:events";
import { type AddressInfo, createServer as createTcpServer } from "node:net";
import { createServer, type TLSSocket } from "node:tls";
import { setTimeout as sleep } from "node:timers/promises";
import { channel } from "@cloche/protocol";
import { afterEach, expect, test } from "vitest";
import { channelKeyOf, connectToAgent, preSharedKeyOf } from "../agent-channel.ts";
import { boundHandshakeMessages } from "./handshake-messages.ts";

const key = channelKeyOf("this machine's secret");
const psk = preSharedKeyOf(key);
const programs: ChildProcessWithoutNullStreams[] = [];
afterEach(() => {
  for (const program of programs.splice(0)) program.kill();
});

function openssl(...args: string[]): ChildProcessWithoutNullStreams {
  const own = ["-psk", psk.toString("hex"), "-psk_identity", channel.identity, "-tls1_3"];
  const program = spawn("openssl", [...args, ...own, "-ciphersuites", channel.cipher]);
  program.stdin.on("error", () => undefined);
  programs.push(program);
  return program;
}

/** New keys, one for each line that the program reads by itself. */
async function sendKeys(program: ChildProcessWithoutNullStreams, count: number, isOver: () => boolean) {
  for (let sent = 0; sent < count && !isOver(); sent += 1) {
    program.stdin.write("k\n");
    await sleep(4);
  }
}

async function accepted(): Promise<{ client: ChildProcessWithoutNullStreams; socket: TLSSocket }> {
  const server = createServer({ ciphers: channel.cipher, pskCallback: () => psk, minVersion: "TLSv1.3" });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const client = openssl("s_client", "-connect", `127.0.0.1:${(server.address() as AddressInfo).port}`);
  const [socket] = (await once(server, "secureConnection")) as [TLSSocket];
  server.close();
  socket.on("error", () => undefined).resume();
  boundHandshakeMessages(socket);
  return { client, socket };
}

test("a client that sends new keys without end is cut off, and one that sends some is not", async () => {
  const { client, socket } = await accepted();
  await sendKeys(client, 20, () => socket.destroyed);
  const heard = once(socket, "data");
  client.stdin.write("and a word\n");
  await heard;
  expect(socket.destroyed).toBe(false);
  await sendKeys(client, 1_000, () => socket.destroyed);
  expect(socket.destroyed).toBe(true);
});

test("an agent that sends new keys without end is cut off", async () => {
  const free = createTcpServer().listen(0, "127.0.0.1");
  await once(free, "listening");
  const { port } = free.address() as AddressInfo;
  await new Promise((resolve) => free.close(resolve));
  const agent = openssl("s_server", "-accept", `127.0.0.1:${port}`, "-nocert");
  await expect.poll(() => heardOf(agent)).toContain("ACCEPT");
  const socket = connectToAgent({ host: "127.0.0.1", port, key });
  socket.on("error", () => undefined).resume();
  await once(socket, "secureConnect");
  await sendKeys(agent, 1_000, () => socket.destroyed);
  expect(socket.destroyed).toBe(true);
});

const outputs = new WeakMap<object, { text: string }>();
function heardOf(program: ChildProcessWithoutNullStreams): string {
  const known = outputs.get(program);
  if (known !== undefined) return known.text;
  const output = { text: "" };
  outputs.set(program, output);
  program.stdout.on("data", (chunk: Buffer) => (output.text += chunk.toString()));
  return output.text;
}
