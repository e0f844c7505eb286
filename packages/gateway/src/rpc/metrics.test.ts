import { Code } from "@connectrpc/connect";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { type GatewayFixture, openFixture } from "../testing/gateway-fixture.ts";

let f: GatewayFixture;
let id: string;
beforeEach(async () => {
  f = await openFixture();
  ({ id } = (await f.call("CreateSandbox")).body.sandbox);
});
afterEach(() => f.close());

describe("GetSandboxMetrics", () => {
  it("answers every field of every sample, oldest first, sizes beyond 4 GiB as numbers", async () => {
    f.host.samples = [
      { atUnixMs: 1_000, cpuShare: 0.5, memoryBytes: 2 ** 33, processes: 2 },
      { atUnixMs: 11_000, diskBytes: 2 ** 40, networkReceivedBytes: 5, networkSentBytes: 6 },
    ];
    const nothing = {
      cpu_share: 0,
      memory_bytes: 0,
      disk_bytes: 0,
      network_received_bytes: 0,
      network_sent_bytes: 0,
      processes: 0,
    };
    const last = {
      ...nothing,
      at: "1970-01-01T00:00:11.000Z",
      disk_bytes: 2 ** 40,
      network_received_bytes: 5,
      network_sent_bytes: 6,
    };
    const { status, body } = await f.call("GetSandboxMetrics", { id });
    expect(status).toBe(200);
    expect(body).toEqual({
      now: last,
      history: [
        {
          ...nothing,
          at: "1970-01-01T00:00:01.000Z",
          cpu_share: 0.5,
          memory_bytes: 2 ** 33,
          processes: 2,
        },
        last,
      ],
    });
  });

  it("is of nothing while the host has no machine of it, and changes nothing", async () => {
    f.host.fault("createMachine", "before", Code.Internal, 1, "no disk");
    const failed = (await f.call("CreateSandbox")).body.sandbox.id;
    const { status, body } = await f.call("GetSandboxMetrics", { id: failed });
    expect([status, body.history]).toEqual([200, []]);
    expect(body.now).toMatchObject({ memory_bytes: 0, disk_bytes: 0, processes: 0 });
    const before = (await f.call("GetSandbox", { id })).body;
    const asked = f.host.calls.length;
    await f.call("GetSandboxMetrics", { id });
    expect(f.host.calls.slice(asked)).toEqual([`getMachineMetrics ${id}`]);
    expect((await f.call("GetSandbox", { id })).body).toEqual(before);
  });

  it("tells when the host cannot be asked", async () => {
    f.host.fault("getMachineMetrics", "before", Code.Internal, 1, "no cgroup");
    expect((await f.call("GetSandboxMetrics", { id })).body).toMatchObject({ code: "internal" });
  });
});
