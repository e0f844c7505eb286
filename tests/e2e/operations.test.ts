// What an operator sees: metrics, health and readiness of a service that works.
import { expect, inject, test } from "vitest";
import { sharedClient } from "../fixtures/client.ts";
import { documentedMetrics } from "../repository/metric-table.ts";

const { env, baseDomain } = inject("service");
const client = sharedClient();

const operator = (path: string): Promise<Response> =>
  fetch(`http://127.0.0.1:${env["CLOCHE_METRICS_PORT"]}${path}`);

/** Every sample by its name and labels; throws on a line that is not of the text format. */
async function scrape(): Promise<Map<string, number>> {
  const response = await operator("/metrics");
  expect(response.headers.get("content-type")).toContain("text/plain; version=0.0.4");
  const samples = new Map<string, number>();
  for (const line of (await response.text()).trimEnd().split("\n")) {
    if (/^# (HELP|TYPE) [a-z_]+ \S/.test(line)) continue;
    const match = /^([a-z_]+(?:\{(?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)+\})?) (-?[\d.]+(?:e[+-]?\d+)?|NaN)$/.exec(
      line,
    );
    if (match === null) throw new Error(`no line of the text format: ${line}`);
    samples.set(match[1] as string, Number(match[2]));
  }
  return samples;
}

test("metrics tell of machines, operations, requests, memory and the pool", async () => {
  const sandbox = await client.create();
  await client.shell(sandbox, "true");
  const taken = await client.call(sandbox, "POST", "/v1/checkpoint", { json: {} });
  expect(taken.status).toBe(200);
  const atLeastOne = [
    'cloche_sandboxes{state="SANDBOX_STATE_RUNNING"}',
    'cloche_operation_seconds_count{operation="create",result="ok"}',
    'cloche_machine_operation_seconds_count{operation="create",result="ok"}',
    'cloche_machine_operation_seconds_count{operation="checkpoint",result="ok"}',
    'cloche_edge_requests_total{route="POST /v1/exec",status="200"}',
    'cloche_edge_request_seconds_count{route="POST /v1/checkpoint"}',
    'cloche_gateway_call_seconds_count{method="CreateSandbox",status="200"}',
    'cloche_pool_bytes{kind="available"}',
    'cloche_memory_bytes{kind="available"}',
    "cloche_machines_memory_bytes",
    "process_resident_memory_bytes",
  ];
  await expect
    .poll(
      async () => {
        const samples = await scrape();
        return atLeastOne.filter((name) => !((samples.get(name) ?? 0) >= 1));
      },
      { timeout: 60_000 },
    )
    .toEqual([]);
  const samples = await scrape();
  expect(samples.has("cloche_checkpoint_uploads")).toBe(true);
  const buckets = [...samples].filter(([name]) =>
    name.startsWith('cloche_operation_seconds_bucket{operation="create",result="ok"'),
  );
  expect(buckets.map(([, count]) => count)).toEqual(buckets.map(([, count]) => count).sort((a, b) => a - b));
  for (const name of samples.keys()) expect(name).not.toContain(sandbox.id);
});

test("metrics have the names and labels that the page for operators lists", async () => {
  const documented = documentedMetrics();
  for (const sample of (await scrape()).keys()) {
    const name = /^[a-z_]+/.exec(sample)?.[0] ?? "";
    const base = documented.has(name) ? name : name.replace(/_(bucket|sum|count)$/, "");
    const labels = [...sample.matchAll(/([a-z_]+)="/g)]
      .map(([, label]) => label)
      .filter((label) => label !== "le");
    expect({ base, labels }).toEqual({ base, labels: documented.get(base) });
  }
});

test("health and readiness answer on every port", async () => {
  const { wire } = client.session;
  const { domain } = await client.create();
  for (const path of ["/healthz", "/readyz"]) {
    expect((await operator(path)).status).toBe(200);
    expect((await wire.gateway({ method: "GET", path, headers: {} })).status).toBe(200);
    expect(
      (await wire.dataPlane(domain, { method: "GET", path, headers: { host: baseDomain } })).status,
    ).toBe(200);
  }
});
