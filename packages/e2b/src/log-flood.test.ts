import { strangersLines } from "@cloche/base";
import { recordedLog } from "@cloche/base/testing";
import { expect, it } from "vitest";
import { createE2b } from "./endpoint.ts";

it("writes a bounded number of lines for requests without a good key", async () => {
  const { log, lines } = recordedLog();
  const nowhere = "http://127.0.0.1:1";
  const endpoint = createE2b({
    gatewayUrl: nowhere,
    edgeUrl: nowhere,
    caCert: "",
    baseDomain: "x.test",
    edgePort: 443,
    secret: Buffer.alloc(32),
    ownKey: "own",
    teamOf: async () => undefined,
    log,
  });
  const port = await endpoint.listen(0, "127.0.0.1");
  const burst = strangersLines.linesPerSecond * strangersLines.burstSeconds;
  for (let flood = 0; flood < burst * 3; flood += 1)
    expect((await fetch(`http://127.0.0.1:${port}/sandboxes`)).status).toBe(401);
  expect(lines.length).toBeGreaterThanOrEqual(burst);
  expect(lines.length).toBeLessThan(burst * 2);
  await endpoint.close();
}, 30_000);
