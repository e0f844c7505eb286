// Two gateways on one database: creates on both while one starts, and one that dies while it creates.
import { setTimeout as sleep } from "node:timers/promises";
import { expect, it } from "vitest";
import { eventually } from "../fixtures/client.ts";
import { HOSTS } from "../lab/lab.ts";
import { machinesOn, theCluster } from "./cluster.ts";

const cluster = theCluster();
const { lab } = cluster;
const fields = { memory_mb: 128, metadata: { test: "two-gateways" } };
const BURST = 6;
/** A gateway's lease on an operation, and what it takes to run it anew. */
const TAKEN_OVER_MS = 20_000;

const made = async (client = cluster.client) => {
  const list = await client.gateway<{ sandboxes: { id: string; state: string; error_message: string }[] }>(
    "ListSandboxes",
    { metadata: fields.metadata, page_size: 200 },
  );
  return list.sandboxes;
};
/** Of the sandboxes, on all hosts: one entry a machine. */
const machines = (ids: readonly string[]) =>
  HOSTS.flatMap((host) => machinesOn(lab.home(host))).filter(({ id }) => ids.includes(id));

it("make each sandbox once and take none for broken while one of them starts", async () => {
  await lab.stop("g2");
  const [g1, g2] = [cluster.through("g1"), cluster.through("g2")];
  const burst = (client: typeof g1) => Array.from({ length: BURST }, () => client.create(fields));
  const first = burst(g1);
  const start = lab.start("g2");
  await sleep(500);
  const second = burst(g1);
  await start;
  const third = burst(g2);
  const boxes = await Promise.all([...first, ...second, ...third]);

  const ids = boxes.map(({ id }) => id);
  expect(new Set(ids).size).toBe(3 * BURST);
  const seen = await made();
  expect(seen.map(({ state, error_message }) => `${state}${error_message}`)).toEqual(
    Array(3 * BURST).fill("SANDBOX_STATE_RUNNING"),
  );
  expect(
    machines(ids)
      .map(({ id }) => id)
      .toSorted(),
  ).toEqual(ids.toSorted());
  for (const box of boxes.slice(-2)) expect((await g1.exec(box, ["echo", "here"])).stdout).toBe("here\n");
  for (const client of [g1, g2]) await client.close();
});

it("finish what one of them leaves when it is killed, once and in time", async () => {
  const before = new Set((await made()).map(({ id }) => id));
  const [g1, g2] = [cluster.through("g1"), cluster.through("g2")];
  const answers = Array.from({ length: BURST }, () => g1.gateway("CreateSandbox", fields).catch(String));
  const created = async () => (await made(g2)).filter(({ id }) => !before.has(id));
  await eventually(created, (seen) => seen.length >= BURST / 2, 10_000);
  await lab.kill("g1");
  const killedMs = performance.now();
  const seen = await eventually(
    created,
    (found) => found.every(({ state }) => state === "SANDBOX_STATE_RUNNING"),
    TAKEN_OVER_MS + 10_000,
  );
  expect(seen.map(({ state, error_message }) => `${state}${error_message}`)).toEqual(
    Array(seen.length).fill("SANDBOX_STATE_RUNNING"),
  );
  expect(seen.length).toBeGreaterThanOrEqual(BURST / 2);
  for (const { id } of seen) g2.session.adopt(id);
  expect(performance.now() - killedMs).toBeLessThan(TAKEN_OVER_MS);
  await Promise.all(answers);
  const ids = seen.map(({ id }) => id);
  expect(
    machines(ids)
      .map(({ id }) => id)
      .toSorted(),
  ).toEqual(ids.toSorted());
  await lab.start("g1");
  for (const client of [g1, g2]) await client.close();
});
