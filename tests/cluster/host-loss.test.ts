// A host's computer is gone for good: what was durable goes on elsewhere, and nobody else notices.
import { expect, it } from "vitest";
import { eventually } from "../fixtures/client.ts";
import { Counter, type Seen, theCluster } from "./cluster.ts";
import { Load } from "./load.ts";

const cluster = theCluster();
const { lab } = cluster;
/**
 * A lease's 20 s until the host is lost, then placement, fetching and resuming: less than 30 s on a computer that does nothing else. This
 * part runs beside another.
 */
const RESUMED_MS = 60_000;

it("resumes durable sandboxes elsewhere with their memory, and no request of other hosts fails", async () => {
  const { client } = cluster;
  const [{ host: lost, box }, ...others] = await cluster.oneOnEach();
  const counter = await Counter.start(client, box);
  await client.shell(box, "echo kept > /root/kept");
  const taken = await client.call(box, "POST", "/v1/checkpoint", { json: {} });
  expect(taken.status).toBe(200);
  const checkpoint = (JSON.parse(taken.body.toString()) as { checkpoint_id: string }).checkpoint_id;
  const running = await client.create({ memory_mb: 128 });
  const isOnLost = (await cluster.hostOf(running)) === lost;
  await cluster.visible(checkpoint);
  const suspended = await client.gateway<{ sandbox: object }>("SuspendSandbox", {
    id: box.id,
    wait_durable: true,
  });
  expect(suspended.sandbox).toMatchObject({ state: "SANDBOX_STATE_SUSPENDED", durable: true });

  const load = new Load(
    cluster.clients,
    others.map((other) => other.box),
  );
  await lab.lose(lost);
  const lostMs = performance.now();
  await eventually(
    () =>
      client
        .gateway<{ sandbox: Seen }>("ResumeSandbox", { id: box.id })
        .then(({ sandbox }) => sandbox.state, String),
    (state) => state === "SANDBOX_STATE_RUNNING",
    RESUMED_MS + 10_000,
  );
  await counter.expectSame(client);
  expect(performance.now() - lostMs).toBeLessThan(RESUMED_MS);
  expect(await cluster.hostOf(box)).not.toBe(lost);
  const report = await load.end();
  expect(report.failed.join("\n")).toBe("");
  expect(report.asked).toBeGreaterThan(50);

  const copy = await client.create({ memory_mb: 256, checkpoint_id: checkpoint });
  expect(await client.shell(copy, "cat /root/kept")).toBe("kept\n");
  if (isOnLost)
    expect(await cluster.get(running)).toMatchObject({
      state: "SANDBOX_STATE_ERROR",
      error_message: expect.stringContaining("host"),
    });
  // The computer is replaced by an empty one of the same name.
  await lab.start(lost);
});
