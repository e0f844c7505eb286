// What is asked of one sandbox at the same time by callers who know nothing of each other: each is answered or refused in
// so many words, and no sandbox, no checkpoint and no clone is left half made. Later moments of the second request let it
// strike other steps of the first.
import { describe, expect, onTestFinished, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { eventually, sharedClient } from "../fixtures/client.ts";

const client = sharedClient();
const momentsMs = [0, 40, 150] as const;
const later = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

interface Made {
  sandbox: { id: string; state: string; domain: string; error_message: string };
  data_plane_token: string;
}
const settled = /RUNNING|SUSPENDED|ERROR|gone/;

/** A sandbox with a note in memory and one on its disk. */
async function noted(): Promise<TestSandbox> {
  const sandbox = await client.create();
  onTestFinished(() => client.session.discard(sandbox.id));
  await client.shell(sandbox, "echo memory > /dev/shm/note; echo disk > /root/note");
  return sandbox;
}
/** The state in which it comes to rest; `gone` when it was deleted. */
const restOf = (id: string): Promise<Made["sandbox"]> =>
  eventually(
    () =>
      client
        .gateway<Made>("GetSandbox", { id })
        .then(({ sandbox }) => sandbox)
        .catch((error: Error) => {
          expect(error.message).toContain("404");
          return { id, state: "gone", domain: "", error_message: "" };
        }),
    ({ state }) => settled.test(state),
    120_000,
  );
const restsIn = async (id: string, state: string): Promise<void> =>
  expect((await restOf(id)).state).toBe(state);

/** The answer, or the refusal in words: never an internal error. */
async function answered<Answer>(request: Promise<Answer>): Promise<Answer | undefined> {
  try {
    return await request;
  } catch (error) {
    expect((error as Error).message).toMatch(
      /answered (4\d\d|503): .*"(failed_precondition|not_found|aborted|unavailable)"/,
    );
    return undefined;
  }
}
/** A data plane request whose refusal may only be that the sandbox is elsewhere. */
async function answeredOrAway(sandbox: TestSandbox, path: string, json: object): Promise<object | undefined> {
  const { status, body } = await client.call(sandbox, "POST", path, { json });
  expect([200, 404, 409, 503], body.toString()).toContain(status);
  return status === 200 ? (JSON.parse(body.toString()) as object) : undefined;
}
const suspend = ({ id }: TestSandbox) => answered(client.gateway("SuspendSandbox", { id }));
const remove = ({ id }: TestSandbox) => client.gateway("DeleteSandbox", { id });

/** Forks, and proves of each clone that it is whole, or says why it is not there. */
async function fork(source: TestSandbox, fields: object, notes: Record<string, string>): Promise<void> {
  const made = await answered(
    client.gateway<Made>("ForkSandbox", { source_sandbox_id: source.id, ...fields }),
  );
  if (made === undefined) return;
  const { id } = made.sandbox;
  client.session.adopt(id);
  const { state, domain, error_message } = await restOf(id);
  if (state === "SANDBOX_STATE_ERROR") expect(error_message).not.toMatch(/^$|internal/);
  else {
    expect(state).toBe("SANDBOX_STATE_RUNNING");
    const clone = { id, domain, token: made.data_plane_token };
    for (const [path, text] of Object.entries(notes))
      expect(await client.shell(clone, `cat ${path}`)).toBe(text);
  }
  await client.session.discard(id);
}
const both = { "/dev/shm/note": "memory\n", "/root/note": "disk\n" };
const forks = (source: TestSandbox, fields: object = {}, notes: Record<string, string> = both) =>
  Promise.all(Array.from({ length: 3 }, () => fork(source, fields, notes)));

async function checkpointOf(sandbox: TestSandbox): Promise<string> {
  const taken = await client.call(sandbox, "POST", "/v1/checkpoint", { json: {} });
  const { checkpoint_id } = JSON.parse(taken.body.toString()) as { checkpoint_id: string };
  const wait = await client.call(sandbox, "POST", "/v1/checkpoint/wait", {
    json: { checkpoint_id, timeout_secs: 120 },
    deadlineMs: 150_000,
  });
  expect(wait.status).toBe(200);
  return checkpoint_id;
}
const listed = async (): Promise<string[]> =>
  (await client.gateway<{ checkpoints: { id: string }[] }>("ListCheckpoints")).checkpoints.map(
    ({ id }) => id,
  );

describe.each(momentsMs)("%i ms later", (moment) => {
  test("a suspend during forks", async () => {
    const source = await noted();
    await Promise.all([forks(source), later(moment).then(() => suspend(source))]);
    const { state } = await restOf(source.id);
    if (state === "SANDBOX_STATE_SUSPENDED") await client.gateway("ResumeSandbox", { id: source.id });
    await restsIn(source.id, "SANDBOX_STATE_RUNNING");
    for (const [path, text] of Object.entries(both))
      expect(await client.shell(source, `cat ${path}`)).toBe(text);
  });

  test("a delete during forks", async () => {
    const source = await noted();
    await Promise.all([forks(source), later(moment).then(() => remove(source))]);
    await restsIn(source.id, "gone");
  });

  test("a delete during a suspend, a checkpoint and a restore", async () => {
    const [one, two, three] = await Promise.all([noted(), noted(), noted()]);
    const checkpoint_id = await checkpointOf(three);
    const [, taken] = await Promise.all([
      suspend(one),
      answeredOrAway(two, "/v1/checkpoint", { name: "last" }),
      answeredOrAway(three, "/v1/restore", { checkpoint_id }),
      later(moment).then(() => Promise.all([one, two, three].map(remove))),
    ]);
    for (const { id } of [one, two, three]) await restsIn(id, "gone");
    // What was answered holds, and seeds another.
    const kept = [checkpoint_id];
    if (taken !== undefined) kept.push((taken as { checkpoint_id: string }).checkpoint_id);
    for (const id of kept) {
      const visible = () =>
        client
          .gateway<{ checkpoints: { id: string; visible: boolean }[] }>("ListCheckpoints")
          .then(({ checkpoints }) => checkpoints.find((checkpoint) => checkpoint.id === id)?.visible);
      expect(await eventually(visible, (seen) => seen === true, 120_000), id).toBe(true);
      const seeded = await client.create({ checkpoint_id: id });
      expect(await client.shell(seeded, "cat /root/note")).toBe("disk\n");
      await client.session.discard(seeded.id);
      await client.gateway("DeleteCheckpoint", { id });
    }
  });

  test("a suspend and forks during a restore", async () => {
    const sandbox = await noted();
    const checkpoint_id = await checkpointOf(sandbox);
    await Promise.all([
      answeredOrAway(sandbox, "/v1/restore", { checkpoint_id }),
      later(moment).then(() => suspend(sandbox)),
      later(moment).then(() => forks(sandbox, {}, { "/root/note": "disk\n" })),
    ]);
    const { state } = await restOf(sandbox.id);
    if (state === "SANDBOX_STATE_SUSPENDED") await client.gateway("ResumeSandbox", { id: sandbox.id });
    await restsIn(sandbox.id, "SANDBOX_STATE_RUNNING");
    expect(await client.shell(sandbox, "cat /root/note")).toBe("disk\n");
    await client.gateway("DeleteCheckpoint", { id: checkpoint_id });
  });

  test("a delete of the checkpoint that forks and a restore read", async () => {
    const source = await noted();
    const checkpoint_id = await checkpointOf(source);
    await client.shell(source, "echo later > /root/later");
    const [, restored] = await Promise.all([
      forks(source, { checkpoint_id }, { "/root/note": "disk\n" }),
      answeredOrAway(source, "/v1/restore", { checkpoint_id }),
      later(moment).then(() => client.gateway("DeleteCheckpoint", { id: checkpoint_id })),
    ]);
    expect(await listed()).not.toContain(checkpoint_id);
    expect(await client.shell(source, "cat /root/note")).toBe("disk\n");
    expect((await client.exec(source, ["test", "-e", "/root/later"])).ok).toBe(restored === undefined);
  });
});
