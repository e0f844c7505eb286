import { expect, it } from "vitest";
import { checkConnections } from "./doctor.ts";

it("says what sandboxes may have of the table of connections, and warns of a small one", async () => {
  expect(await checkConnections(262_144)).toMatchObject({
    state: "ok",
    found: expect.stringMatching(/262144 .* 196608, .* 49152$/) as string,
  });
  expect(await checkConnections(16_384)).toMatchObject({
    state: "warning",
    remedy: expect.stringContaining("nf_conntrack_max=65536") as string,
  });
});
