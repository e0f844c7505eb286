import { once } from "node:events";
import http from "node:http";
import http2 from "node:http2";
import { expect, it } from "vitest";
import { listen } from "./listener.ts";

const idleMs = 1_500;
const started = () => listen((_, response) => void response.end("ok"), "127.0.0.1", 0);

it("answers a client that calls again on its connection while it stops, and waits for no other", async () => {
  const listener = await started();
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
  const call = async () => {
    const request = http.get({ host: "127.0.0.1", port: listener.port, agent });
    const [response] = (await once(request, "response")) as [http.IncomingMessage];
    response.resume();
    await once(response, "end");
    return { isReused: request.reusedSocket, connection: response.headers.connection };
  };
  expect(await call()).toEqual({ isReused: false, connection: "keep-alive" });
  listener.drain();
  const quiet = listener.quiet(idleMs);
  await new Promise((resolve) => setTimeout(resolve, 100));
  await expect(fetch(`http://127.0.0.1:${listener.port}/`)).rejects.toThrow("fetch failed");
  expect(await call()).toEqual({ isReused: true, connection: "close" });
  const beganMs = performance.now();
  await quiet;
  expect(performance.now() - beganMs).toBeLessThan(idleMs);
  await listener.close();
});

it("answers a call that comes by HTTP/2 while it stops, and ends the connection with that", async () => {
  const listener = await started();
  const session = http2.connect(`http://127.0.0.1:${listener.port}`);
  const call = async () => {
    const stream = session.request({ ":path": "/" });
    stream.resume();
    const [headers] = (await once(stream, "response")) as [http2.IncomingHttpHeaders];
    await once(stream, "end");
    return headers[":status"];
  };
  expect(await call()).toBe(200);
  listener.drain();
  const quiet = listener.quiet(idleMs);
  const gone = once(session, "goaway");
  const closed = once(session, "close");
  expect(await call()).toBe(200);
  expect((await gone)[0]).toBe(http2.constants.NGHTTP2_NO_ERROR);
  await closed;
  await quiet;
  await listener.close();
});
