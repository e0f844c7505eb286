import { mkdtempSync, rmSync } from "node:fs";
import { connect, createServer, type AddressInfo, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { buildAddon } from "@cloche/agent/build-addon";
import { openPoller, type Poller } from "../../packages/agent/src/poller.ts";

const folder = mkdtempSync(join(tmpdir(), "cloche-poller-"));
const messages: string[] = [];
const note = (message: string): void => void messages.push(message);
const log = { info: note, warn: note, error: note };
let poller: Poller;

beforeAll(async () => {
  const path = join(folder, "poller.node");
  await buildAddon("poller", path);
  poller = openPoller(path, log);
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

test("sockets and timers go on, and nothing that was under way is lost", async () => {
  const accepted = Promise.withResolvers<Socket>();
  const server = createServer((socket) => accepted.resolve(socket));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const client = connect((server.address() as AddressInfo).port, "127.0.0.1");
  const far = await accepted.promise;
  const received: Buffer[] = [];
  far.on("data", (chunk: Buffer) => received.push(chunk));

  const timer = new Promise((resolve) => setTimeout(resolve, 20));
  const size = 4 << 20; // more than the socket takes at once: both ends wait for the loop
  client.write(Buffer.alloc(size, 1));
  poller.renew();
  await expect.poll(() => Buffer.concat(received).length, { timeout: 30_000 }).toBe(size);
  await timer;

  poller.renew();
  poller.renew();
  client.write("last words");
  await expect
    .poll(() => Buffer.concat(received).subarray(size).toString(), { timeout: 30_000 })
    .toBe("last words");
  client.end();
  far.end();
  await new Promise((resolve) => server.close(resolve));
  expect(messages).toEqual([]);
});

test("what the loop has closed stays closed, what is opened later is heard", async () => {
  const server = createServer((socket) => socket.pipe(socket));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  for (let round = 0; round < 20; round += 1) {
    const client = connect(port, "127.0.0.1");
    const echoed = new Promise((resolve) => client.once("data", (data) => resolve(data.toString())));
    poller.renew();
    client.write(`round ${round}`);
    poller.renew();
    expect(await echoed).toBe(`round ${round}`);
    client.destroy();
    poller.renew();
  }
  await new Promise((resolve) => server.close(resolve));
});

test("without the addon nothing is done, and the log says so", () => {
  const without = openPoller(join(folder, "missing.node"), log);
  without.renew();
  without.expectSnapshot();
  expect(messages).toEqual(["no poller: the event loop is left as it is"]);
});
