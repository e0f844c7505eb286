import { expect, it } from "vitest";
import { Rig } from "./testing/rig.ts";

const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

it("carries a valid trace context to the agent unchanged, and drops one that is not", async () => {
  await using rig = await Rig.start();
  const headers = { tracestate: "vendor=1" };
  await rig.ask({ path: "/v1/store", headers: { ...headers, traceparent } });
  await rig.ask({ path: "/v1/store", headers: { ...headers, traceparent: "00-nonsense" } });
  const [valid, invalid] = rig.seen;
  expect(valid?.headers).toMatchObject({ traceparent, tracestate: "vendor=1" });
  expect(invalid?.headers).not.toHaveProperty("traceparent");
  expect(invalid?.headers).not.toHaveProperty("tracestate");
});
