import { Metrics } from "@cloche/base";
import { expect, it } from "vitest";
import { openFixture } from "./testing/gateway-fixture.ts";

it("tells of sandboxes by state, operations, calls and refusals", async () => {
  const metrics = new Metrics();
  const f = await openFixture({ metrics });
  expect((await f.call("CreateSandbox")).status).toBe(200);
  expect((await f.call("GetSandbox", { id: "sbx-none" })).status).toBe(404);
  expect((await f.call("GetSandbox", {}, { secret: "wrong" })).status).toBe(401);
  await expect
    .poll(() => metrics.text())
    .toContain('cloche_gateway_call_seconds_count{method="GetSandbox",status="401"} 1');
  const text = await metrics.text();
  for (const line of [
    'cloche_sandboxes{state="SANDBOX_STATE_RUNNING"} 1',
    'cloche_sandboxes{state="SANDBOX_STATE_ERROR"} 0',
    'cloche_operation_seconds_count{operation="create",result="ok"} 1',
    'cloche_gateway_call_seconds_count{method="CreateSandbox",status="200"} 1',
    'cloche_gateway_errors_total{code="not_found"} 1',
    'cloche_gateway_errors_total{code="unauthenticated"} 1',
  ])
    expect(text).toContain(`${line}\n`);
  await f.close();
});

it("is not ready once it drains, and answers still", async () => {
  const f = await openFixture();
  await expect.poll(() => f.gateway.ready().then(() => "ready", String)).toBe("ready");
  f.gateway.drain();
  await expect(f.gateway.ready()).rejects.toThrow("the gateway is stopping");
  expect((await f.call("ListSandboxes")).status).toBe(200);
  await f.close();
});
