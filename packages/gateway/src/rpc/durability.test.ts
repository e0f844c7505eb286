/** What an owner says and sees of the loss of a host: on_host_loss, checkpoint_every_seconds, durable, wait_durable. */
import { create } from "@bufbuild/protobuf";
import { MachinePhase, StoredImageSchema } from "@cloche/protocol/host";
import { Code } from "@connectrpc/connect";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { type GatewayFixture, openFixture } from "../testing/gateway-fixture.ts";
import { World } from "../testing/world.ts";

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
  let world: World;
  let id: string;
  const image = create(StoredImageSchema, { key: "h-1.1.k", cpuClass: "c", packs: [{ id: "p1", bytes: 7 }] });
  const store = (): void => void world.host.set(id, MachinePhase.SUSPENDED, { storedImage: image });
  const sandbox = async () => (await world.call("GetSandbox", { id })).body.sandbox;

  beforeEach(async () => {
    world = await World.open("a");
    id = (await world.call("CreateSandbox")).body.sandbox.id;
  });
  afterEach(() => world.close());

  it("is so once the image is in storage, until it runs on", async () => {
    await world.call("SuspendSandbox", { id });
    await world.settle();
    expect(await sandbox()).toMatchObject({ state: S, durable: false });
    store();
    await world.settle();
    expect(await sandbox()).toMatchObject({ state: S, durable: true });
    expect(await world.database.sandboxes.imagePacks(id)).toEqual(["p1"]);
    await world.call("ResumeSandbox", { id });
    await world.settle();
    expect(await sandbox()).toMatchObject({ state: R, durable: false });
    expect(await world.database.sandboxes.get(id)).toMatchObject({ image: "" });
    await world.call("SuspendSandbox", { id });
    await world.settle();
    expect(await sandbox()).toMatchObject({ state: S, durable: false });
  });

  it("wait_durable answers when it is, or at once where it is already", async () => {
    const answer = world.call("SuspendSandbox", { id, wait_durable: true });
    await world.settle();
    store();
    expect((await answer).body.sandbox).toMatchObject({ state: S, durable: true });
    const again = await world.call("SuspendSandbox", { id, wait_durable: true });
    expect(again.body.sandbox).toMatchObject({ state: S, durable: true });
  });

  it("wait_durable answers after a minute with what is", async () => {
    const began = world.clock.nowMs();
    const answer = await world.callPassingTime("SuspendSandbox", { id, wait_durable: true });
    expect(answer?.body.sandbox).toMatchObject({ state: S, durable: false });
    expect(world.clock.nowMs() - began).toBeGreaterThanOrEqual(60_000);
    expect(world.clock.nowMs() - began).toBeLessThan(70_000);
  });

  it("wait_durable answers when the suspend fails", async () => {
    world.host.fault("suspendMachine", "before", Code.FailedPrecondition, 1, "files are held open");
    const answer = await world.callPassingTime("SuspendSandbox", { id, wait_durable: true });
    expect(answer?.body.sandbox).toMatchObject({
      state: R,
      error_message: expect.stringMatching(/held open/),
    });
  });
});
