// The data plane needs neither the database nor a gateway: a gateway that is cut from PostgreSQL, and a PostgreSQL that restarts, fail no
// request and end no host.
import { setTimeout as sleep } from "node:timers/promises";
import { expect, it } from "vitest";
import { eventually } from "../fixtures/client.ts";
import { Counter, theCluster } from "./cluster.ts";
import { Load } from "./load.ts";

const cluster = theCluster();
const { lab } = cluster;
/** Longer than a lease of a host. */
const CUT_MS = 18_000;
const AWAY_MS = 4_000;

it("fails no request of the data plane while a gateway is cut from it, and while it restarts", async () => {
  const { client } = cluster;
  const boxes = (await cluster.oneOnEach()).map(({ box }) => box);
  const counters = await Promise.all(boxes.map((box) => Counter.start(client, box)));
  const generations = await lab.sql("select id, generation from hosts order by id");

  const load = new Load(cluster.clients, boxes);
  await lab.connect("g1", ["pg"], false);
  await sleep(CUT_MS);
  await lab.connect("g1", ["pg"], true);
  await lab.stopDatabase();
  await sleep(AWAY_MS);
  await lab.startDatabase();
  await sleep(2_000);
  const report = await load.end();

  expect(report.failed.join("\n")).toBe("");
  expect(report.asked).toBeGreaterThan(100);
  for (const counter of counters) await counter.expectSame(client);
  expect(await lab.sql("select id, generation from hosts order by id")).toEqual(generations);
  for (const gateway of ["g1", "g2"]) {
    const through = cluster.through(gateway);
    const answered = await eventually(
      () => through.gateway("ListSandboxes", {}).then(() => "answered", String),
      (answer) => answer === "answered",
    );
    expect(answered).toBe("answered");
    await through.close();
  }
});
