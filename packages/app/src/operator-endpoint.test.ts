import { request } from "node:http";
import { Metrics } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import { afterEach, expect, it } from "vitest";
import { type OperatorEndpoint, openOperatorEndpoint } from "./operator-endpoint.ts";
import { processMetrics } from "./process-metrics.ts";

let endpoint: OperatorEndpoint | undefined;
afterEach(() => endpoint?.close());

interface Answer {
  status: number;
  allow?: string;
  body: string;
}
function ask(path: string, options: { method?: string; host?: string } = {}): Promise<Answer> {
  const { promise, resolve, reject } = Promise.withResolvers<Answer>();
  const { port } = endpoint as OperatorEndpoint;
  const { method = "GET", host = `127.0.0.1:${port}` } = options;
  const asked = request({ host: "127.0.0.1", port, path, method, headers: { host } }, (response) => {
    let body = "";
    response.setEncoding("utf8").on("data", (text: string) => (body += text));
    response.once("end", () => {
      const { allow } = response.headers;
      resolve({ status: response.statusCode ?? 0, body, ...(allow !== undefined && { allow }) });
    });
  });
  asked.once("error", reject).end();
  return promise;
}

it("serves metrics, health and readiness", async () => {
  let isReady = false;
  const metrics = new Metrics();
  processMetrics(metrics, "0.0.0");
  endpoint = await openOperatorEndpoint(0, metrics, async () => {
    if (!isReady) throw new ClocheError("unavailable", "the gateway is stopping");
  });
  const { status, body } = await ask("/metrics");
  expect(status).toBe(200);
  expect(body).toMatch(/^process_resident_memory_bytes \d+$/m);
  expect(body).toMatch(/^process_cpu_seconds_total [\d.]+$/m);
  expect(body).toMatch(/^cloche_build_info\{version="0\.0\.0"\} 1$/m);
  expect((await ask("/healthz")).status).toBe(200);
  expect(await ask("/readyz")).toEqual({
    status: 503,
    body: JSON.stringify({ code: "unavailable", message: "the gateway is stopping" }),
  });
  isReady = true;
  expect((await ask("/readyz")).status).toBe(200);
});

it("refuses other methods, paths, and a Host that is no loopback name", async () => {
  endpoint = await openOperatorEndpoint(0, new Metrics(), async () => undefined);
  expect(await ask("/metrics", { method: "POST" })).toMatchObject({ status: 405, allow: "GET, HEAD" });
  expect(await ask("/healthz", { method: "HEAD" })).toEqual({ status: 200, body: "" });
  expect((await ask("/secrets")).status).toBe(404);
  expect((await ask("/metrics", { host: "evil.example" })).status).toBe(403);
  expect((await ask("/metrics", { host: "127.0.0.1.evil.example" })).status).toBe(403);
  expect((await ask("/metrics", { host: "localhost" })).status).toBe(200);
});
