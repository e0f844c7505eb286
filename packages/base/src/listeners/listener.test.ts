/** A server as boundHttp bounds it: its times, its body's bytes, its places. */
import { once } from "node:events";
import { createServer, type RequestListener, type Server } from "node:http";
import net, { type AddressInfo, type Socket } from "node:net";
import { afterEach, describe, expect, it, vi } from "vitest";
import { boundHttp, callerIsKnown, http1Bounds } from "./bound-listener.ts";
import { listenerBounds } from "./bounds.ts";
import { ConnectionPlaces } from "./connection-places.ts";

let server: Server;
afterEach(() => {
  vi.useRealTimers();
  server.closeAllConnections();
  server.close();
});

async function listening(
  handler: RequestListener,
  connections = 8,
): Promise<(text: string) => Promise<Socket>> {
  server = createServer({ ...http1Bounds, requestTimeout: 0 }, handler);
  boundHttp(server, "e2b", new ConnectionPlaces({ connections, connectionsPerAddress: connections }));
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return async (text) => {
    const socket = net.connect((server.address() as AddressInfo).port, "127.0.0.1");
    socket.on("error", () => undefined).resume();
    await once(socket, "connect");
    if (text !== "") socket.write(text);
    return socket;
  };
}

const half = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{";

describe("a bound server", () => {
  it("has times for heads, bodies and idle connections", async () => {
    await listening(() => undefined);
    expect(server.headersTimeout).toBe(listenerBounds.headMs);
    expect(http1Bounds.requestTimeout).toBe(listenerBounds.bodyMs);
    expect(server.keepAliveTimeout).toBe(listenerBounds.idleMs);
  });

  it("cuts off a body that stops coming, also where uploads may take long", async () => {
    vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
    const seen = Promise.withResolvers<void>();
    const send = await listening((request) => {
      request.resume();
      seen.resolve();
    });
    const socket = await send(half);
    await seen.promise;
    const closed = once(socket, "close");
    vi.advanceTimersByTime(listenerBounds.bodyStallMs + 1);
    expect(socket.destroyed).toBe(false);
    // Bytes that come keep it.
    const received = new Promise((resolve) => server.once("more", resolve));
    socket.write("x", () => setTimeout(() => server.emit("more"), 50));
    await received;
    vi.advanceTimersByTime(listenerBounds.bodyStallMs);
    await new Promise((resolve) => setTimeout(resolve, 50));
    expect(socket.destroyed).toBe(false);
    vi.advanceTimersByTime(listenerBounds.bodyStallMs);
    await closed;
  });

  it("keeps the place of a caller that is known, and of none that only began a body", async () => {
    const send = await listening((request) => {
      if (request.url === "/known") callerIsKnown(request);
    }, 3);
    const known = await send(half.replace("/ ", "/known "));
    const stranger = await send(half);
    const silent = await send("");
    await new Promise((resolve) => setTimeout(resolve, 50));
    const gone = once(stranger, "close");
    const more = await send("");
    await gone;
    await send("");
    await once(silent, "close");
    await send("");
    await once(more, "close");
    expect(known.destroyed).toBe(false);
  });
});
