import { once } from "node:events";
import net from "node:net";
import { Metrics, silentLog, systemClock } from "@cloche/base";
import { expect, it } from "vitest";
import { createEdge } from "../edge.ts";
import { selfSigned } from "../testing/certificate.ts";
import { FakeGateway } from "../testing/fake-gateway.ts";
import { baseDomain, Rig, until } from "../testing/rig.ts";

it("answers health on the base domain and on addresses, never on a sandbox's domain", async () => {
  await using rig = await Rig.start();
  for (const host of [
    baseDomain,
    `${baseDomain}:${rig.port}`,
    "127.0.0.1",
    `[::1]:${rig.port}`,
    "localhost",
  ]) {
    for (const path of ["/healthz", "/readyz"]) {
      const answer = await rig.ask({ path, headers: { host } });
      expect([host, answer.status, answer.body]).toEqual([host, 200, '{"status":"ok"}']);
    }
  }
  for (const method of ["POST", "DELETE", "OPTIONS"]) {
    const wrong = await rig.ask({ path: "/healthz", method, headers: { host: baseDomain } });
    expect([wrong.status, wrong.headers.allow], method).toEqual([405, "GET, HEAD"]);
  }
  expect((await rig.ask({ path: "/healthz", headers: { host: "example.com" } })).status).toBe(404);
  await rig.ask({ path: "/healthz" });
  expect(rig.seen.map(({ url }) => url)).toEqual(["/healthz"]);
});

it("counts requests by route and status, refusals by code, and no health checks", async () => {
  const metrics = new Metrics();
  await using rig = await Rig.start({ metrics });
  await rig.ask({ method: "POST", path: "/v1/exec", body: "{}" });
  await rig.ask({ method: "PUT", path: "/v1/store/some/key", body: "{}" });
  await rig.ask({ path: "/v1/nothing" });
  await rig.ask({ path: "/v1/store", label: "sbx-00000000000000000000" });
  await rig.ask({ path: "/readyz", headers: { host: baseDomain } });
  let text = "";
  await until(async () => {
    text = await metrics.text();
    return text.includes('cloche_edge_errors_total{code="not_found"} 1');
  });
  expect(text).toContain('cloche_edge_requests_total{route="POST /v1/exec",status="200"} 1');
  expect(text).toContain('cloche_edge_requests_total{route="PUT /v1/store/*",status="200"} 1');
  expect(text).toContain('cloche_edge_requests_total{route="none",status="200"} 1');
  expect(text).toContain('cloche_edge_requests_total{route="GET /v1/store",status="404"} 1');
  expect(text).toContain('cloche_edge_request_seconds_count{route="POST /v1/exec"} 1');
  expect(text).not.toContain("some/key");
  expect(text).not.toContain("readyz");
});

it("listens once it knows its routes: a load balancer asks another edge before", async () => {
  const gateway = await FakeGateway.start();
  const known = Promise.withResolvers<void>();
  const free = net.createServer().listen(0, "127.0.0.1");
  await once(free, "listening");
  const { port } = free.address() as net.AddressInfo;
  await new Promise((resolve) => free.close(resolve));
  const edge = createEdge({
    tls: await selfSigned(baseDomain),
    baseDomain,
    port,
    address: "127.0.0.1",
    routes: {
      ...gateway.client,
      async *watchRoutes(request, options) {
        await known.promise;
        yield* gateway.client.watchRoutes(request, options);
      },
    },
    hostDataPlane: () => undefined,
    clock: systemClock,
    log: silentLog,
  });
  const connect = () => once(net.connect(port, "127.0.0.1"), "connect");
  const started = edge.start();
  await new Promise((resolve) => setTimeout(resolve, 50));
  await expect(connect()).rejects.toMatchObject({ code: "ECONNREFUSED" });
  known.resolve();
  await started;
  await connect();
  await edge.stop();
});
