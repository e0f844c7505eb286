// A host that is given another storage than its cluster's does not start, and says which setting is wrong and what would be right.
import { expect, it } from "vitest";
import { theCluster } from "./cluster.ts";

const { lab } = theCluster();

it("refuses a storage that is not the cluster's", async () => {
  const host = "h2";
  await lab.stop(host);
  const { places } = lab;
  const other = places.blobUrl.replace("/lab?", "/other?");
  expect(other).not.toBe(places.blobUrl);
  const refused = await lab.command(["host"], host, { CLOCHE_BLOB_URL: other }).catch(String);
  expect(refused).toContain("the checkpoint storage s3://cloche/other belongs to no cluster");
  expect(refused).toContain("Set CLOCHE_BLOB_URL to the storage of this host's cluster");
  expect(refused).toContain("its gateways use s3://cloche/lab");
  expect(refused).not.toMatch(/\bat .+:\d+:\d+/);
  await lab.start(host);
});
