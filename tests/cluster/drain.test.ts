// A host is drained under load: its sandboxes go on elsewhere with their processes and memory, and requests wait for them meanwhile.
import { expect, it } from "vitest";
import { eventually } from "../fixtures/client.ts";
import { Counter, theCluster } from "./cluster.ts";
import { Load } from "./load.ts";

const cluster = theCluster();
const { lab } = cluster;
const DRAINED_MS = 60_000;
/** As long as an edge holds a request. What it takes on a quiet machine is for a benchmark to say. */
const HELD_MS = 15_000;

it("keeps processes, memory and requests", async () => {
  const { client } = cluster;
  const [{ host, box }] = await cluster.oneOnEach();
  const counter = await Counter.start(client, box);
  const load = new Load(cluster.clients, [box]);
  await lab.command(["drain", host]);
  const left = await eventually(
    () => lab.sql(`select id from sandboxes where host_id = '${host}'`),
    (ids) => ids.length === 0,
    DRAINED_MS,
  );
  expect(left).toEqual([]);
  const report = await load.end();
  expect(report.failed.join("\n")).toBe("");
  expect(report.longestMs).toBeLessThan(HELD_MS);
  await counter.expectSame(client);
  await lab.command(["uncordon", host]);
});
