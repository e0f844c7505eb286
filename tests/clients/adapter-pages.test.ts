// The JavaScript of docs/adapters.md, as a reader would run it, with the frameworks' own fake models. The Python of it:
// adapters/python/tests/test_pages.py.
import {
  copyFileSync,
  cpSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";
import { afterAll, beforeAll, expect, inject, test } from "vitest";
import { nodeTools, succeeded } from "../fixtures/python-tools.ts";
import { repositoryRoot } from "../fixtures/service.ts";

const { target } = inject("service");
const adapters = join(repositoryRoot, "adapters/javascript");
const page = readFileSync(join(repositoryRoot, "docs/adapters.md"), "utf8");
let folder = "";

/** The block of JavaScript under a heading of the page. */
function block(heading: string): string {
  const section = page.split(`\n## ${heading}\n`)[1]?.split("\n## ")[0] ?? "";
  const [, code] = /```js\n([^]*?)```/.exec(section) ?? [];
  if (code === undefined) throw new Error(`no JavaScript under ${heading}`);
  return code;
}

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), "cloche-adapter-pages-"));
  const modules = join(folder, "node_modules");
  mkdirSync(join(modules, "@cloche"), { recursive: true });
  const tools = await nodeTools(adapters);
  for (const name of readdirSync(tools)) symlinkSync(join(tools, name), join(modules, name));
  symlinkSync(join(repositoryRoot, "packages/sdk"), join(modules, "@cloche/sdk"));
  copyFileSync(join(repositoryRoot, "tests/fixtures/page-model.mjs"), join(folder, "page-model.mjs"));
  await Promise.all(
    readdirSync(adapters, { withFileTypes: true }).map(async (entry) => {
      if (entry.isDirectory() && entry.name !== "node_modules") await install(entry.name, modules);
    }),
  );
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** Packs an adapter as a reader of the page does, and unpacks it among the modules. */
async function install(name: string, modules: string): Promise<void> {
  const own = join(folder, name);
  cpSync(join(adapters, name), own, { recursive: true });
  const tools = join(repositoryRoot, "node_modules/.bin");
  const env = { ...process.env, PATH: `${tools}${delimiter}${process.env["PATH"]}` };
  await succeeded("npm", ["pack", "--silent", own], { cwd: folder, env });
  const { version } = JSON.parse(readFileSync(join(own, "package.json"), "utf8")) as { version: string };
  const installed = join(modules, "@cloche", name);
  mkdirSync(installed);
  const tarball = join(folder, `cloche-${name}-${version}.tgz`);
  await succeeded("tar", ["-xzf", tarball, "-C", installed, "--strip-components=1"]);
}

/** A framework may keep a program alive. What a block disposes of at its end is deleted before. */
const soon = "setTimeout(() => process.exit(0), 5_000).unref();";

/** What a block of the page prints, between what it takes for granted and what looks at its effect. */
async function run(name: string, before: string, code: string, after: string): Promise<string> {
  const { PATH } = process.env;
  const env = { PATH, HOME: folder, CLOCHE_URL: target.gatewayUrl, CLOCHE_API_KEY: target.apiKey };
  const program = join(folder, `${name}.mjs`);
  writeFileSync(program, `${before}\n${code}\n${after}\n${soon}`);
  return succeeded(process.execPath, [program], { env, cwd: folder });
}

const faked = (tool: string): string =>
  `import { modelThatCalls } from "./page-model.mjs";
  const { model, seen } = modelThatCalls(${JSON.stringify(tool)}, "echo from-$(hostname)");`;

test("Deep Agents", async () => {
  const fake = 'import { FakeListChatModel } from "@langchain/core/utils/testing";';
  const code = block("LangChain Deep Agents").replace(
    '"anthropic:claude-sonnet-4-5"',
    'new FakeListChatModel({ responses: ["done"] })',
  );
  expect(await run("deepagents", fake, code, "console.log(typeof agent.invoke);")).toBe("function\n");
});

test("ComputeSDK", async () => {
  expect(await run("computesdk", "", block("ComputeSDK"), "console.log(stdout);")).toBe("42\n\n");
});

test("the Vercel AI SDK", async () => {
  const output = await run(
    "ai-sdk",
    faked("shell"),
    block("Vercel AI SDK"),
    "console.log(text, machine.info.name, seen());",
  );
  const [, name = ""] = /^done (\S+) /.exec(output) ?? [];
  expect(name).not.toBe("");
  expect(output).toContain(`from-${name}`);
});

test("Mastra", async () => {
  const before = faked("mastra_workspace_execute_command");
  expect(await run("mastra", before, block("Mastra"), "console.log(seen());")).toMatch(/from-[a-z-]+\d+\\n/);
});
