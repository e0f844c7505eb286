/** The owner's fields about the loss of a host: on_host_loss, checkpoint_every_seconds, durable, wait_durable. */
import { Code } from "@connectrpc/connect";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { type GatewayFixture, openFixture } from "../testing/gateway-fixture.ts";
import { LossWorld } from "../testing/loss-world.ts";

const S = "SANDBOX_STATE_SUSPENDED";
const R = "SANDBOX_STATE_RUNNING";

describe("on_host_loss and checkpoint_every_seconds", () => {
  let f: GatewayFixture;
  beforeEach(async () => {
    f = await openFixture();
  });
  afterEach(() => f.close());

  it("are kept, changed, and a fork has its source's unless it says otherwise", async () => {
    const plain = (await f.call("CreateSandbox")).body.sandbox;
    expect(plain).toMatchObject({ on_host_loss: "error", checkpoint_every_seconds: 0, durable: false });
    const said = { on_host_loss: "restart_from_checkpoint", checkpoint_every_seconds: 60 };
    const { id, ...made } = (await f.call("CreateSandbox", said)).body.sandbox;
    expect(made).toMatchObject(said);
    const fork = (body: object) => f.call("ForkSandbox", { source_sandbox_id: id, ...body });
    expect((await fork({})).body.sandbox).toMatchObject(said);
    const other = { on_host_loss: "error", checkpoint_every_seconds: 0 };
    expect((await fork(other)).body.sandbox).toMatchObject(other);
    const changed = { on_host_loss: "error", checkpoint_every_seconds: 86_400 };
    expect((await f.call("UpdateSandbox", { id, ...changed })).body.sandbox).toMatchObject(changed);
    expect((await f.call("GetSandbox", { id })).body.sandbox).toMatchObject(changed);
  });

  it.each([
    [
      { on_host_loss: "restart" },
      /^on_host_loss is "restart"; it must be one of error, restart_from_checkpoint$/,
    ],
    [
      { checkpoint_every_seconds: 59 },
      /^checkpoint_every_seconds is 59; it must be 0 \(never\) or a whole number from 60 to 86400$/,
    ],
    [{ checkpoint_every_seconds: 86_401 }, /^checkpoint_every_seconds is 86401/],
  ])("%j is refused", async (body, message) => {
    const { id } = (await f.call("CreateSandbox")).body.sandbox;
    for (const [method, fields] of [
      ["CreateSandbox", {}],
      ["UpdateSandbox", { id }],
      ["ForkSandbox", { source_sandbox_id: id }],
    ] as const) {
      const answer = await f.call(method, { ...fields, ...body });
      expect(answer.body).toEqual({ code: "invalid_argument", message: expect.stringMatching(message) });
    }
  });

  it("wait_durable is refused on a single machine, before anything is done", async () => {
    const { id } = (await f.call("CreateSandbox")).body.sandbox;
    const answer = await f.call("SuspendSandbox", { id, wait_durable: true });
    expect(answer.body).toMatchObject({
      code: "failed_precondition",
      message: expect.stringMatching(/^wait_durable/),
    });
    expect((await f.call("GetSandbox", { id })).body.sandbox.state).toBe(R);
  });
});

describe("durable", () => {
  let world: LossWorld;
  let id: string;
  const sandbox = () => world.sandbox(id);
  const store = async () => (await world.hostOf(id)).store(id);
  /** Answers after `ms` at the latest. */
  async function answered(body: object, ms: number) {
    const answer = world.gateway.call("SuspendSandbox", { id, ...body });
    await expect.poll(async () => (await world.record(id)).state).not.toBe(R);
    await world.fleet.clock.advance(ms);
    return (await answer).body.sandbox;
  }

  beforeEach(async () => {
    world = await LossWorld.open();
    for (const host of world.fleet.hosts.values()) host.stores = false;
    id = await world.create();
  });
  afterEach(() => world.close());

  it("is so once the image is in storage, until it runs on", async () => {
    await world.suspend(id);
    expect(await sandbox()).toMatchObject({ state: S, durable: false });
    await store();
    await world.settle();
    expect(await sandbox()).toMatchObject({ state: S, durable: true });
    expect(await world.fleet.database.sandboxes.imagePacks(id)).toHaveLength(1);
    await world.gateway.call("ResumeSandbox", { id });
    await world.settle();
    expect(await sandbox()).toMatchObject({ state: R, durable: false });
    expect(await world.record(id)).toMatchObject({ image: "" });
    await world.suspend(id);
    expect(await sandbox()).toMatchObject({ state: S, durable: false });
  });

  it("wait_durable answers when it is, or at once where it is already", async () => {
    const answer = world.gateway.call("SuspendSandbox", { id, wait_durable: true });
    await expect.poll(async () => (await world.record(id)).state).toBe(S);
    await store();
    expect((await answer).body.sandbox).toMatchObject({ state: S, durable: true });
    const again = await world.gateway.call("SuspendSandbox", { id, wait_durable: true });
    expect(again.body.sandbox).toMatchObject({ state: S, durable: true });
  });

  it("wait_durable answers after a minute with what is", async () => {
    expect(await answered({ wait_durable: true }, 60_000)).toMatchObject({ state: S, durable: false });
  });

  it("wait_durable answers when the suspend fails", async () => {
    (await world.hostOf(id)).fault(
      "suspendMachine",
      "before",
      Code.FailedPrecondition,
      1,
      "files are held open",
    );
    const answer = await world.gateway.call("SuspendSandbox", { id, wait_durable: true });
    expect(answer.body.sandbox).toMatchObject({
      state: R,
      error_message: expect.stringMatching(/held open/),
    });
  });
});
