import { once } from "node:events";
import { createServer, type ServerResponse } from "node:http";
import net, { type AddressInfo } from "node:net";
import { expect, test } from "vitest";
import { sendAnswer } from "./exchange.ts";

const mib = 1_048_576;

test("messages of a stream that is not read wait in the response, where they are counted", async () => {
  let sent: ServerResponse | undefined;
  let isCanceled = false;
  const messages = new ReadableStream<Uint8Array>({
    start(controller) {
      for (let count = 0; count < 32; count += 1) controller.enqueue(new Uint8Array(mib));
    },
    cancel: () => void (isCanceled = true),
  });
  const server = createServer((_request, response) => {
    sent = response;
    void sendAnswer(response, new Response(messages));
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  const socket = net.connect((server.address() as AddressInfo).port, "127.0.0.1").pause();
  socket.on("error", () => undefined).write("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
  await expect.poll(() => sent?.writableLength).toBeGreaterThan(16 * mib);
  socket.destroy();
  await expect.poll(() => isCanceled).toBe(true);
  server.close();
});

test("a stream that fails breaks the answer off", async () => {
  const server = createServer((_request, response) => {
    const failing = new ReadableStream({ pull: (controller) => controller.error(new Error("lost")) });
    void sendAnswer(response, new Response(failing));
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  const { port } = server.address() as AddressInfo;
  await expect(fetch(`http://127.0.0.1:${port}`).then((answer) => answer.text())).rejects.toThrow();
  server.close();
});
