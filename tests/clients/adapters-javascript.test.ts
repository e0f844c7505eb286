// The JavaScript adapters against the running service: their types, and a round of each. Upstream's suites run by `npm run compat`.
import { cpSync, mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, inject, test } from "vitest";
import { nodeTools, succeeded } from "../fixtures/python-tools.ts";
import { repositoryRoot } from "../fixtures/service.ts";

const { target } = inject("service");
const adapters = join(repositoryRoot, "adapters/javascript");
const names = ["computesdk", "ai-sdk", "deepagents", "mastra"];
let folder = "";

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), "cloche-adapters-"));
  for (const name of names) cpSync(join(adapters, name), join(folder, name), { recursive: true });
  const tools = await nodeTools(adapters);
  const modules = join(folder, "node_modules");
  mkdirSync(join(modules, "@cloche"), { recursive: true });
  for (const name of readdirSync(tools)) symlinkSync(join(tools, name), join(modules, name));
  symlinkSync(join(repositoryRoot, "packages/sdk"), join(modules, "@cloche/sdk"));
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

test.each(names)("%s has the types of its contract", async (name) => {
  const typescript = join(repositoryRoot, "node_modules/.bin/tsc");
  const words = ["-p", join(folder, name), "--noEmit"];
  await succeeded(typescript, words, { cwd: folder });
});

/** What the program of an adapter prints. */
async function round(name: string): Promise<unknown> {
  const { PATH } = process.env;
  const env = { PATH, CLOCHE_URL: target.gatewayUrl, CLOCHE_API_KEY: target.apiKey };
  return JSON.parse(await succeeded(process.execPath, [join(folder, name, "tests/round.mjs")], { env }));
}

test("ComputeSDK's provider makes, runs, streams, writes, snapshots and destroys", async () => {
  expect(await round("computesdk")).toEqual({
    ran: ["compute in /srv\n", "oh\n", 3],
    late: [124, "now\n"],
    who: "user\n",
    kept: "kept",
    listed: true,
    info: ["running", 300_000, "computesdk"],
    gone: true,
  });
});

test("the AI SDK's sandbox runs, spawns, reads and writes as its contract says", async () => {
  expect(await round("ai-sdk")).toEqual({
    ran: { exitCode: 3, stdout: "ai in /home/user\n", stderr: "oh\n" },
    lines: "2\n3\n",
    last: "4\n",
    bytes: [70_000, 70_000],
    refused: "refused",
    nothing: [null, null, null, null, false],
    listed: ["lines file", "link symlink"],
    followed: "file",
    deleted: [true, 8],
    directory: "refused",
    through: ["through", "end\n", 0],
    killed: ["up\n", 137],
    left: "0\n",
    aborted: "enough",
  });
});

test("the backend of Deep Agents runs, reads, writes and searches", async () => {
  expect(await round("deepagents")).toEqual({
    ran: [["user", "/home/user"], true, 3],
    matches: ["/home/user/a.txt:2"],
    errors: ["file_not_found", "is_directory", "invalid_path", "permission_denied"],
    isRunning: false,
  });
});

test("Mastra's sandbox runs, stops with what runs in it, goes on in another object and comes back when it was deleted", async () => {
  expect(await round("mastra")).toEqual({
    before: "pending",
    told: "mastra in /home/user as user",
    ran: ["you\n", "o h\n", 3, false],
    late: ["now\n", 124, true],
    empty: 0,
    file: "file\n",
    url: true,
    stopped: ["stopped", "SANDBOX_STATE_SUSPENDED"],
    kept: [true, "thröugh\n", "cat; sleep 60", true],
    killed: [true, null, false, "thröugh\n"],
    resumed: "2\n",
    anew: "",
    cloned: "mastra1\n",
    left: [],
  });
});
