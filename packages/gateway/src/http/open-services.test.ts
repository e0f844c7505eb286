import { Health, HealthCheckResponse_ServingStatus as Status } from "@cloche/protocol/grpc-health";
import { Code, createClient } from "@connectrpc/connect";
import { createGrpcTransport, createGrpcWebTransport } from "@connectrpc/connect-node";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { gatewayLimits } from "../limits.ts";
import { type GatewayFixture, openFixture } from "../testing/gateway-fixture.ts";

let f: GatewayFixture;
let url: string;
beforeEach(async () => {
  f = await openFixture();
  url = `http://127.0.0.1:${f.listener.port}`;
});
afterEach(() => f.close());

describe("gRPC health, without a key", () => {
  it.each([
    ["gRPC", () => createGrpcTransport({ baseUrl: url })],
    ["gRPC-Web", () => createGrpcWebTransport({ baseUrl: url, httpVersion: "1.1" })],
  ])("checks the server, its services and nothing else, over %s", async (_name, transport) => {
    const health = createClient(Health, transport());
    for (const service of ["", "cloche.public.v1.SandboxService", "grpc.health.v1.Health"])
      expect((await health.check({ service })).status).toBe(Status.SERVING);
    await expect(health.check({ service: "no.Service" })).rejects.toMatchObject({ code: Code.NotFound });
    f.gateway.drain();
    expect((await health.check({})).status).toBe(Status.NOT_SERVING);
  });

  it("watches: the state at once, each change, and the end", async () => {
    const health = createClient(Health, createGrpcTransport({ baseUrl: url }));
    const watch = health.watch({})[Symbol.asyncIterator]();
    expect((await watch.next()).value.status).toBe(Status.SERVING);
    f.gateway.drain();
    const changed = watch.next();
    await f.clock.advance(gatewayLimits.healthWatchMs);
    expect((await changed).value.status).toBe(Status.NOT_SERVING);
    await f.restart();
    expect(await watch.next()).toMatchObject({ done: true });
  });

  it.each(["99999999H", "99999999S"])("watches with the timeout %s", async (timeout) => {
    const health = createClient(Health, createGrpcTransport({ baseUrl: url }));
    const watch = health.watch({}, { headers: { "grpc-timeout": timeout } })[Symbol.asyncIterator]();
    expect((await watch.next()).value.status).toBe(Status.SERVING);
    const changed = watch.next();
    await new Promise((resolve) => setTimeout(resolve, 50));
    f.gateway.drain();
    await f.clock.advance(gatewayLimits.healthWatchMs);
    expect((await changed).value.status).toBe(Status.NOT_SERVING);
  });

  it("says NOT_SERVING to those who watch when it closes, and of a service that there is not that it is unknown", async () => {
    const health = createClient(Health, createGrpcTransport({ baseUrl: url }));
    const [good, unknown] = ["", "no.Service"].map((service) =>
      health.watch({ service })[Symbol.asyncIterator](),
    );
    expect((await good?.next())?.value.status).toBe(Status.SERVING);
    expect((await unknown?.next())?.value.status).toBe(Status.SERVICE_UNKNOWN);
    const last = good?.next();
    await f.restart();
    expect((await last)?.value.status).toBe(Status.NOT_SERVING);
  });

  it("bounds the streams that are open at once, and still answers checks", async () => {
    const health = createClient(Health, createGrpcTransport({ baseUrl: url }));
    const left = new AbortController();
    const open = Array.from({ length: gatewayLimits.openStreamsOfAddress }, () =>
      health.watch({}, { signal: left.signal })[Symbol.asyncIterator](),
    );
    await Promise.all(open.map((watch) => watch.next()));
    const refused = health.watch({})[Symbol.asyncIterator]().next();
    await expect(refused).rejects.toMatchObject({ code: Code.ResourceExhausted });
    expect((await health.check({})).status).toBe(Status.SERVING);
    left.abort();
    const end = new AbortController();
    const again = (): Promise<unknown> =>
      health.watch({}, { signal: end.signal })[Symbol.asyncIterator]().next();
    const isOpen = (): Promise<boolean> => again().then(Boolean, () => false);
    await expect.poll(isOpen).toBe(true);
    end.abort();
  });
});
