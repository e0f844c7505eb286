// The Python client against the running service: its types, its wheel, what it says when something is wrong, the ten lines of its
// page, and every conformance case through both of its faces.
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, inject, test } from "vitest";
import { loadCaseFiles } from "../conformance/case-file.ts";
import { clientFolder, pythonWithTools, succeeded } from "../fixtures/python-tools.ts";
import { repositoryRoot } from "../fixtures/service.ts";

const { target, home } = inject("service");
const allFiles = loadCaseFiles();
let python = "";
let folder = "";
let env: NodeJS.ProcessEnv = {};

beforeAll(async () => {
  python = await pythonWithTools();
  folder = mkdtempSync(join(tmpdir(), "cloche-python-"));
  const cases = join(folder, "cases.json");
  writeFileSync(cases, JSON.stringify(allFiles));
  const { PATH } = process.env;
  const service = { CLOCHE_HOME: home, CLOCHE_URL: target.gatewayUrl, CLOCHE_API_KEY: target.apiKey };
  const tests = { CLOCHE_TEST_CASES: cases, CLOCHE_TEST_TARGET: JSON.stringify(target) };
  env = { PATH, PYTHONDONTWRITEBYTECODE: "1", PYTHONPATH: join(clientFolder, "src"), ...service, ...tests };
});

afterAll(() => rmSync(folder, { recursive: true, force: true }));

const run = (words: string[], more: NodeJS.ProcessEnv = {}): Promise<string> =>
  succeeded(python, words, { cwd: clientFolder, env: { ...env, ...more } });

test("the client for ordinary programs is what is generated from the one for asyncio", async () => {
  await run(["scripts/generate_sync.py", "--check"]);
});

test("mypy and pyright, both strict, find nothing", async () => {
  await run(["-m", "mypy", "--cache-dir", join(folder, "mypy")]);
  const pyright = join(repositoryRoot, "node_modules/pyright/index.js");
  const words = [pyright, "--project", clientFolder, "--pythonpath", python];
  await succeeded(process.execPath, words, { cwd: clientFolder });
});

test("the wheel needs httpx alone, and the ten lines of docs/python.md run with it", async () => {
  const wheels = join(folder, "wheels");
  await run(["-m", "build", "--wheel", "--no-isolation", "--outdir", wheels]);
  const [wheel = ""] = readdirSync(wheels);
  const site = join(folder, "site");
  const wheelPath = join(wheels, wheel);
  await run(["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", site, wheelPath]);
  const needs = "import importlib.metadata as m; print(m.requires('cloche'), m.version('cloche'))";
  const only = { PYTHONPATH: site };
  expect(await run(["-c", needs], only)).toMatch(/^\['httpx[^']*'\] 0\.\d+\.\d+\n$/);
  expect(readdirSync(join(site, "cloche"))).toContain("py.typed");

  const page = readFileSync(join(repositoryRoot, "docs/python.md"), "utf8");
  const [, lines = ""] = /## Ten lines\n+```python\n([^]*?)```/.exec(page) ?? [];
  expect(lines.trim().split("\n").filter(Boolean).length).toBeLessThanOrEqual(10);
  expect(await run(["-c", lines], only)).toBe("45\n\nprint(sum(range(10)))\n\n");
});

test("each thing that is wrong is told with its remedy", async () => {
  const files = ["tests/test_errors.py", "tests/test_proxies.py"];
  expect(await run(["-m", "pytest", "-q", ...files])).toMatch(/\d+ passed in/);
});

test("after a fork, in another event loop and by pickle no call gets the answer to another's", async () => {
  expect(await run(["-m", "pytest", "-q", "tests/test_forks_and_loops.py"])).toMatch(/^\d+ passed in/m);
});

// An empty folder for a home: no CA is found there.
const nowhere = mkdtempSync(join(tmpdir(), "cloche-no-home-"));
afterAll(() => rmSync(nowhere, { recursive: true }));
const byTls = { CLOCHE_EDGE_URL: `https://${target.edgeHost}:${target.edgePort}` };
test.each([
  ["sync", "without a CA", { CLOCHE_HOME: nowhere }],
  ["async", "by TLS", byTls],
])("streams, bytes, archives and the lifecycle, %s, %s", async (flavour, _name, more) => {
  const words = ["-m", "pytest", "-q", "tests/conformance/test_streams.py", "--flavour", flavour];
  expect(await run(words, more)).toMatch(/^\d+ passed in/m);
});

// The client that is generated from the other: two minutes instead of four. The other runs by `--flavour async`. By halves, since
// a busy computer takes several times as long.
test.each(["gateway", "dataplane"])(
  "every conformance case of %s passes through the client for ordinary programs",
  async (surface) => {
    const files = allFiles.filter(({ path }) => path.startsWith(`${surface}/`));
    const cases = join(folder, `${surface}.json`);
    writeFileSync(cases, JSON.stringify(files));
    const words = ["-q", "--tb=short", "tests/conformance/test_cases.py", "--flavour", "sync"];
    const output = await run(["-m", "pytest", ...words], { ...byTls, CLOCHE_TEST_CASES: cases });
    const count = (word: string): number => Number(new RegExp(`(\\d+) ${word}`).exec(output)?.[1] ?? 0);
    const caseCount = files.flatMap((file) => file.cases).length;
    expect(caseCount).toBeGreaterThan(50);
    expect(count("passed") + count("xfailed"), output).toBe(caseCount);
    expect(count("xfailed")).toBeLessThanOrEqual(1);
  },
);
