import { withRequestIds } from "@cloche/base";
import type { CallOptions } from "@connectrpc/connect";
import { expect, it } from "vitest";
import { FakeClock } from "../testing/fake-clock.ts";
import { HostCalls, type HostClient } from "./host-calls.ts";

it("tells the host the request's ids, and the trace that the caller named", async () => {
  const told: unknown[] = [];
  const client = {
    listMachines: async (_request: object, options: CallOptions) => {
      told.push(options.headers);
      return { machines: [] };
    },
  } as unknown as HostClient;
  const calls = new HostCalls(() => client, new FakeClock());
  const call = { signal: new AbortController().signal, requestId: "req-1" };
  const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  await withRequestIds({ requestId: "req-1", traceparent }, () => calls.list(call));
  await calls.list(call);
  expect(told).toEqual([{ "x-request-id": "req-1", traceparent }, { "x-request-id": "req-1" }]);
});
