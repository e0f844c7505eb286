// The JavaScript adapters against the running service: their types, and a round of each. Upstream's suites run by `npm run compat`.
import { cpSync, mkdirSync, mkdtempSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, inject, test } from "vitest";
import { nodeTools, succeeded } from "../fixtures/python-tools.ts";
import { repositoryRoot } from "../fixtures/service.ts";

const { target } = inject("service");
const adapters = join(repositoryRoot, "adapters/javascript");
let folder = "";

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), "cloche-adapters-"));
  cpSync(join(adapters, "computesdk"), join(folder, "computesdk"), { recursive: true });
  cpSync(await nodeTools(adapters), join(folder, "node_modules"), { recursive: true });
  mkdirSync(join(folder, "node_modules/@cloche"));
  symlinkSync(join(repositoryRoot, "packages/sdk"), join(folder, "node_modules/@cloche/sdk"));
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

test("ComputeSDK's provider has the types of its contract", async () => {
  const typescript = join(repositoryRoot, "node_modules/.bin/tsc");
  const words = ["-p", join(folder, "computesdk"), "--noEmit", "--allowImportingTsExtensions"];
  await succeeded(typescript, words, { cwd: folder });
});

test("ComputeSDK's provider makes, runs, streams, writes, snapshots and destroys", async () => {
  const { PATH } = process.env;
  const env = { PATH, CLOCHE_URL: target.gatewayUrl, CLOCHE_API_KEY: target.apiKey };
  const output = await succeeded(process.execPath, [join(folder, "computesdk/tests/round.mjs")], { env });
  expect(JSON.parse(output)).toEqual({
    ran: ["compute in /srv\n", "oh\n", 3],
    late: [124, "now\n"],
    who: "user\n",
    kept: "kept",
    listed: true,
    info: ["running", 300_000, "computesdk"],
    gone: true,
  });
});
