// `cloche down` on a host: its sandboxes are suspended, nothing of it stays on the computer, and with the next start they go on.
import { expect, it } from "vitest";
import { emptyInventory, grown, inventory } from "../fixtures/inventory.ts";
import { Counter, theCluster } from "./cluster.ts";

const cluster = theCluster();
const { lab } = cluster;

it("suspends what runs and leaves nothing behind", async () => {
  const { client } = cluster;
  const box = await client.create({ memory_mb: 256 });
  const host = await cluster.hostOf(box);
  const counter = await Counter.start(client, box);
  await lab.command(["down"], host);
  expect(grown(emptyInventory, inventory(lab.home(host)))).toEqual([]);
  await lab.start(host);
  await client.gateway("ResumeSandbox", { id: box.id });
  expect(await cluster.hostOf(box)).toBe(host);
  await counter.expectSame(client);
});
