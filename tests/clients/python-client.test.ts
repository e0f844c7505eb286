// A client written from the interface document alone, in the Python standard library, goes through both surfaces.
import { join } from "node:path";
import { expect, inject, test } from "vitest";
import { repositoryRoot, runCommand } from "../fixtures/service.ts";

test("a client of the Python standard library does the whole round", async () => {
  const { target, home, env } = inject("service");
  const settings = {
    CLOCHE_GATEWAY: target.gatewayUrl,
    CLOCHE_KEY: target.apiKey,
    CLOCHE_EDGE: `${target.edgeHost}:${target.edgePort}`,
    CLOCHE_CA: join(home, "tls", "ca.pem"),
  };
  const script = join(repositoryRoot, "tests/fixtures/contract-client.py");
  const result = await runCommand("python3", [script], { env: { ...env, ...settings } });
  expect(result.code, result.stdout + result.stderr).toBe(0);
  expect(result.stdout).toContain("all done\n");
});
