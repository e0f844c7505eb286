// What breaks below or inside a virtual machine: the owner finds a state that is true and words that say what to do, the disk is
// as it was, and nothing is left over. Damaged memory, kill -9 of the service: survival.test.ts. A QEMU that hangs ends in the same way
// as one that is killed: tests/host/qemu.test.ts. Root's sysrq: lock-down.test.ts.
import { beforeAll, describe, expect, inject, onTestFailed, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { eventually, sharedClient } from "../fixtures/client.ts";
import { TestService } from "../fixtures/service.ts";
import { checkpointImage, fillPool, qemusOf, snapshotFile, wipeSuperblock } from "./host-side.ts";
import {
  goesOn,
  reaches,
  resume,
  type SandboxAnswer,
  sandboxOf,
  startCounter,
  suspend,
} from "./vm-client.ts";

const { home, env } = inject("service");
const client = sharedClient();
let service: TestService;
beforeAll(async () => {
  service = await TestService.running(home, env);
});

/** A sandbox with something on its disk and in its store, and something in its memory alone. */
async function furnished(name: string): Promise<TestSandbox> {
  const sandbox = await client.create({ name });
  await client.call(sandbox, "PUT", "/v1/store/kept", { json: { value: "stored" } });
  await client.shell(sandbox, "echo kept > /root/kept; sync; echo lost > /dev/shm/lost");
  return sandbox;
}

test("a machine whose QEMU is killed starts again from its disk, without its memory, and its record says why", async () => {
  onTestFailed(() => console.error(service.logTail()));
  const sandbox = await furnished("killed");
  const before = await qemusOf(home, sandbox);
  expect(before).toHaveLength(1);
  process.kill(before[0] ?? 0, "SIGKILL");
  const seen = await eventually(
    () => sandboxOf(client, sandbox.id),
    ({ state, error_message }) =>
      state === "SANDBOX_STATE_ERROR" ||
      (state === "SANDBOX_STATE_RUNNING" && error_message.includes("started again")),
    240_000,
  );
  expect(seen).toMatchObject({
    state: "SANDBOX_STATE_RUNNING",
    error_message: expect.stringMatching("started again from its disk: .*process was killed") as string,
  });
  expect(await client.shell(sandbox, "cat /root/kept; ls /dev/shm/lost 2> /dev/null || echo gone")).toBe(
    "kept\ngone\n",
  );
  const stored = await client.call(sandbox, "GET", "/v1/store/kept");
  expect(JSON.parse(stored.body.toString())).toMatchObject({ value: "stored" });
  const after = await qemusOf(home, sandbox);
  expect(after).toHaveLength(1);
  expect(before).not.toContain(after[0]);
  await client.session.discard(sandbox.id);
});

describe("a damaged disk", () => {
  const post = async (
    sandbox: TestSandbox,
    path: string,
    json: object,
  ): Promise<{ status: number; body: string }> => {
    const { status, body } = await client.call(sandbox, "POST", path, { json });
    return { status, body: body.toString() };
  };

  test("of a checkpoint is refused by name, and harms nobody", async () => {
    onTestFailed(() => console.error(service.logTail()));
    const sandbox = await furnished("checkpointed");
    const taken = await post(sandbox, "/v1/checkpoint", {});
    const { checkpoint_id } = JSON.parse(taken.body) as { checkpoint_id: string };
    await post(sandbox, "/v1/checkpoint/wait", { checkpoint_id, timeout_secs: 240 });
    wipeSuperblock(checkpointImage(home, checkpoint_id));
    const restored = await post(sandbox, "/v1/restore", { checkpoint_id });
    expect(restored).toMatchObject({ status: 409, body: expect.stringContaining("is damaged") as string });
    expect(await client.shell(sandbox, "cat /root/kept /dev/shm/lost")).toBe("kept\nlost\n");
    await expect(client.gateway("CreateSandbox", { checkpoint_id })).rejects.toThrow(
      /failed_precondition.*damaged/,
    );
    expect(await qemusOf(home, sandbox)).toHaveLength(1);
  });

  test("of a suspended machine leaves it suspended and says so", async () => {
    onTestFailed(() => console.error(service.logTail()));
    const sandbox = await furnished("suspended");
    await suspend(client, sandbox);
    wipeSuperblock(snapshotFile(home, sandbox, "disk.ext4"));
    await client.gateway("ResumeSandbox", { id: sandbox.id });
    const seen = await eventually(
      () => sandboxOf(client, sandbox.id),
      ({ error_message }) => error_message !== "",
      240_000,
    );
    expect(seen).toMatchObject({
      state: "SANDBOX_STATE_SUSPENDED",
      error_message: expect.stringContaining("damaged") as string,
    });
    expect(await qemusOf(home, sandbox)).toEqual([]);
  });
});

test("no room on the pool: nothing new is begun, what runs runs on, and with room all works again", async () => {
  onTestFailed(() => console.error(service.logTail()));
  const sandbox = await furnished("cramped");
  const begun = await startCounter(client, sandbox);
  let refused: SandboxAnswer;
  const giveBack = fillPool(home);
  try {
    await expect(client.gateway("ForkSandbox", { source_sandbox_id: sandbox.id })).rejects.toThrow(
      /429.*pool is full; delete/,
    );
    const checkpoint = await client.call(sandbox, "POST", "/v1/checkpoint", { json: {} });
    expect([checkpoint.status, checkpoint.body.toString()]).toEqual([
      507,
      expect.stringContaining("pool is full; delete"),
    ]);
    await client.gateway("SuspendSandbox", { id: sandbox.id });
    refused = await eventually(
      () => sandboxOf(client, sandbox.id),
      ({ state, error_message }) => state === "SANDBOX_STATE_RUNNING" && error_message !== "",
      240_000,
    );
  } finally {
    giveBack();
  }
  expect(refused).toMatchObject({
    state: "SANDBOX_STATE_RUNNING",
    error_message: expect.stringContaining("pool is full; delete") as string,
  });
  await goesOn(client, sandbox, begun);
  await suspend(client, sandbox);
  await resume(client, sandbox);
  await goesOn(client, sandbox, begun);
  await reaches(client, sandbox.id, "SANDBOX_STATE_RUNNING");
});
