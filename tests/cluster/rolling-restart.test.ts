// An upgrade of the cluster: each program is ended and started again, one after the other, under load. Behind a load balancer no request
// fails, and machines keep their processes.
import { afterAll, expect, it } from "vitest";
import { EDGES, GATEWAYS, HOSTS } from "../lab/lab.ts";
import { Counter, theCluster } from "./cluster.ts";
import { Load } from "./load.ts";

const cluster = theCluster();
const { lab } = cluster;
let load: Load | undefined;
afterAll(() => load?.end());

it.each([
  ["gateways", GATEWAYS],
  ["edges", EDGES],
  ["hosts", HOSTS],
])("of all %s fails no request, and machines keep their pids", async (_, nodes) => {
  const { client } = cluster;
  const boxes = (await cluster.oneOnEach()).map(({ box }) => box);
  const counters = await Promise.all(boxes.map((box) => Counter.start(client, box)));
  load = new Load(cluster.clients, boxes);
  for (const node of nodes) {
    await lab.stop(node);
    await lab.start(node);
  }
  const report = await load.end();
  expect(report.failed.join("\n")).toBe("");
  expect(report.asked).toBeGreaterThan(50);
  for (const counter of counters) await counter.expectSame(client);
  for (const { id } of boxes) await client.session.discard(id);
});
