// A sandbox whose disk is full to the last block, with a store in use: it can be frozen in every way, and comes back.
import { beforeAll, expect, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { eventually, sharedClient } from "../fixtures/client.ts";

const client = sharedClient();
let sandbox: TestSandbox;
const keys = Array.from({ length: 12 }, (_, number) => `key-${number}`);
const holdsAll = async (one: TestSandbox): Promise<void> => {
  for (const key of keys)
    expect([key, (await client.call(one, "GET", `/v1/store/${key}`)).status]).toEqual([key, 200]);
};
const reaches = async (state: string): Promise<void> => {
  const { sandbox: seen } = await eventually(
    () => client.gateway<{ sandbox: { state: string } }>("GetSandbox", { id: sandbox.id }),
    (answer) => answer.sandbox.state === state,
    120_000,
  );
  expect(seen).toMatchObject({ state, error_message: "" });
};
const json = async (
  path: string,
  body: object,
): Promise<{ status: number; body: Record<string, unknown> }> => {
  const answer = await client.call(sandbox, "POST", path, { json: body });
  return { status: answer.status, body: JSON.parse(answer.body.toString()) as Record<string, unknown> };
};

beforeAll(async () => {
  sandbox = await client.create({ disk_mb: 1_024 });
  for (const key of keys) {
    const answer = await client.call(sandbox, "PUT", `/v1/store/${key}`, {
      json: { value: "v".repeat(400_000) },
    });
    expect(answer.status).toBe(200);
  }
  const most = "fallocate -l $(($(df -B1 --output=avail / | tail -1) - 20000000)) /fill";
  const fill = `${most}; dd if=/dev/zero of=/rest bs=1M; dd if=/dev/zero of=/rest bs=4k oflag=append conv=notrunc; true`;
  await client.exec(sandbox, ["sh", "-c", fill]);
  const write = await client.call(sandbox, "POST", "/v1/files?path=/more", {
    body: Buffer.alloc(500_000, "x"),
  });
  expect(write.status).toBe(507);
});

test("is checkpointed, restored and forked", async () => {
  const taken = await json("/v1/checkpoint", {});
  expect(taken).toMatchObject({ status: 200, body: { ok: true } });
  const restored = await json("/v1/restore", { checkpoint_id: taken.body["checkpoint_id"] });
  expect(restored).toMatchObject({ status: 200, body: { ok: true } });
  await holdsAll(sandbox);
  const forked = await client.gateway<{ sandbox: TestSandbox; data_plane_token: string }>("ForkSandbox", {
    source_sandbox_id: sandbox.id,
  });
  const fork = { ...forked.sandbox, token: forked.data_plane_token };
  client.session.adopt(fork.id);
  await holdsAll(fork);
  expect((await client.exec(fork, ["echo", "alive"])).stdout).toBe("alive\n");
});

test("is suspended and resumed, and works again once there is room", async () => {
  await client.gateway("SuspendSandbox", { id: sandbox.id });
  await reaches("SANDBOX_STATE_SUSPENDED");
  await client.gateway("ResumeSandbox", { id: sandbox.id });
  await reaches("SANDBOX_STATE_RUNNING");
  await holdsAll(sandbox);
  // What the log of the store has room for it still takes.
  let status = 200;
  for (let number = 0; number < 60 && status === 200; number += 1) {
    const json = { value: "v".repeat(200_000) };
    ({ status } = await client.call(sandbox, "PUT", `/v1/store/more-${number}`, { json }));
  }
  expect(status).toBe(507);
  await client.shell(sandbox, "rm /fill /rest");
  const again = await client.call(sandbox, "PUT", "/v1/store/more", { json: { value: "v".repeat(900_000) } });
  expect(again.status).toBe(200);
});
