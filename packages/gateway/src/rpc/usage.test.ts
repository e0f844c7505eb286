import { MachinePhase } from "@cloche/protocol/host";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { type GatewayFixture, openFixture } from "../testing/gateway-fixture.ts";

let f: GatewayFixture;
beforeEach(async () => {
  f = await openFixture();
});
afterEach(() => f.close());

const minuteMs = 60_000;

async function create(fields: object = {}): Promise<string> {
  return (await f.call("CreateSandbox", fields)).body.sandbox.id;
}
async function until(id: string, state: string): Promise<void> {
  await expect
    .poll(async () => {
      await f.clock.advance(100);
      const { body } = await f.call("GetSandbox", { id });
      return body.sandbox?.state ?? body.code;
    })
    .toBe(state);
}
const secondsOf = async (query: object = {}): Promise<number> =>
  (await f.call("GetUsage", query)).body.compute_seconds;

describe("compute time", () => {
  it("counts while RUNNING, by time range, and is kept after a delete", async () => {
    const beganMs = f.clock.nowMs();
    const id = await create({ cpus: 0.5, memory_mb: 512 });
    await f.clock.advance(10 * minuteMs);
    const { body } = await f.call("GetUsage", { sandbox_id: id });
    expect(body.usage).toHaveLength(1);
    expect(body.usage[0]).toMatchObject({ sandbox_id: id, compute_seconds: 600, cpu_seconds: 300 });
    // One that is deleted is known by its name, and by the key that made it.
    const { sandbox } = (await f.call("GetSandbox", { id })).body;
    expect(body.usage[0]).toMatchObject({ name: sandbox.name, created_by: sandbox.created_by });
    expect(sandbox).toMatchObject({ created_by: expect.stringMatching(/^key-/), host_id: "" });
    expect(body.usage[0].memory_mb_seconds).toBe(600 * 512);
    const at = (minutes: number): string => new Date(beganMs + minutes * minuteMs).toISOString();
    expect(await secondsOf({ from: at(2), to: at(5) })).toBe(180);
    expect(await secondsOf({ from: at(9), to: at(60) })).toBe(60);
    expect(await secondsOf({ to: at(0) })).toBe(0);
    await f.call("SuspendSandbox", { id });
    await until(id, "SANDBOX_STATE_SUSPENDED");
    await f.clock.advance(60 * minuteMs);
    expect(await secondsOf({ sandbox_id: id })).toBe(600);
    await f.call("DeleteSandbox", { id });
    await until(id, "not_found");
    expect(await secondsOf({ sandbox_id: id })).toBe(600);
    expect(await secondsOf()).toBe(600);
  });

  it("is paged by sandbox, with the total on every page", async () => {
    const ids = [await create(), await create(), await create()].toSorted();
    await f.clock.advance(minuteMs);
    const first = (await f.call("GetUsage", { page_size: 2 })).body;
    const second = (await f.call("GetUsage", { page_size: 2, page_token: first.next_page_token })).body;
    const seen = [...first.usage, ...second.usage].map((one: { sandbox_id: string }) => one.sandbox_id);
    expect(seen).toEqual(ids);
    expect([first.compute_seconds, second.compute_seconds]).toEqual([180, 180]);
    expect(second.next_page_token).toBe("");
    const other = await f.call("GetUsage", {
      page_token: first.next_page_token,
      from: "2020-01-01T00:00:00Z",
    });
    expect([other.status, other.body.code]).toEqual([400, "invalid_argument"]);
  });

  it("goes on over a restart of the service while the machine does", async () => {
    const id = await create();
    await f.clock.advance(5_000);
    await f.restart();
    await f.clock.advance(5_000);
    expect(await secondsOf({ sandbox_id: id })).toBe(10);
  });

  it("ends where a machine was last seen, when it ended while the service was away", async () => {
    const id = await create();
    await f.clock.advance(90_000);
    await f.gateway.close();
    f.host.machines.get(id)!.phase = MachinePhase.FAILED;
    await f.clock.jump(60 * minuteMs);
    await f.restart();
    await until(id, "SANDBOX_STATE_ERROR");
    expect(await secondsOf({ sandbox_id: id })).toBe(90);
  });

  it("leaves out the time that a machine which began anew did not run", async () => {
    const id = await create();
    await f.clock.advance(90_000);
    await f.gateway.close();
    await f.clock.jump(60 * minuteMs);
    f.host.machines.get(id)!.runningSinceUnixMs = BigInt(f.clock.nowMs());
    await f.restart();
    await f.clock.advance(10_000);
    await expect.poll(() => secondsOf({ sandbox_id: id })).toBe(100);
  });
});
