// The Python adapters against the running service, by the suites that upstream publishes: all of Inspect's, LangChain's but the asyncio
// twins and the large files (`npm run compat` runs all), an agent each of mini-swe-agent and the OpenAI Agents SDK, SWE-ReX, and what
// docs/adapters.md shows.
import { join } from "node:path";
import { beforeAll, expect, inject, test } from "vitest";
import { pythonByUv, succeeded } from "../fixtures/python-tools.ts";
import { cacheFolder, repositoryRoot } from "../fixtures/service.ts";

const { target } = inject("service");
const cwd = join(repositoryRoot, "adapters/python");
let python = "";
beforeAll(async () => {
  python = await pythonByUv(join(cwd, "requirements.txt"));
});

/** Out: compat/langchain-deepagents.ts says why. */
const outOfLangchain = ["test_glob", "test_write_existing_file_fails", "test_a", "large"];

test.concurrent.each([
  ["deepagents", ["-k", `not (${outOfLangchain.join(" or ")})`], 30],
  ["inspect", [], 44],
  ["mini_swe_agent", [], 2],
  ["openai_agents", [], 4],
  ["swe_rex", [], 4],
  ["pages", [], 5],
] as const)("%s passes the cases of its upstream", async (name, words, atLeast) => {
  const { PATH } = process.env;
  const service = { CLOCHE_URL: target.gatewayUrl, CLOCHE_API_KEY: target.apiKey };
  // What they import is large: its bytecode is kept, and not in this tree.
  const env = { PATH, PYTHONPYCACHEPREFIX: join(cacheFolder, "python-bytecode"), ...service };
  const pytest = ["-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", `tests/test_${name}.py`];
  const output = await succeeded(python, [...pytest, ...words], { cwd, env });
  expect(Number(/(\d+) passed/.exec(output)?.[1] ?? 0), output).toBeGreaterThanOrEqual(atLeast);
});
