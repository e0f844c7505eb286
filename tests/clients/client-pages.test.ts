// The ten lines of each page in docs/clients, as a reader would run them (those of docs/python.md run in python-sdk.test.ts).
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";
import { afterAll, beforeAll, expect, inject, test } from "vitest";
import { succeeded } from "../fixtures/python-tools.ts";
import { repositoryRoot } from "../fixtures/service.ts";

const { target, env: serviceEnv } = inject("service");
let folder = "";
let env: NodeJS.ProcessEnv = {};

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "cloche-pages-"));
  symlinkSync(join(repositoryRoot, "node_modules"), join(folder, "node_modules"));
  const bin = join(folder, "bin");
  mkdirSync(bin);
  symlinkSync(join(repositoryRoot, "node_modules/.bin/cloche"), join(bin, "cloche"));
  const PATH = `${bin}${delimiter}${process.env["PATH"]}`;
  env = { ...serviceEnv, PATH, CLOCHE_URL: target.gatewayUrl, CLOCHE_API_KEY: target.apiKey };
});

afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** The block under "Ten lines" of a page; a line that goes on in the next counts once. */
function tenLines(page: string, language: string): string {
  const text = readFileSync(join(repositoryRoot, "docs/clients", page), "utf8");
  const block = new RegExp(`## Ten lines\\n[^]*?\`\`\`${language}\\n([^]*?)\`\`\``).exec(text)?.[1] ?? "";
  const lines = block.replaceAll("\\\n", "").trim().split("\n").filter(Boolean);
  expect(lines.length, page).toBeGreaterThan(5);
  expect(lines.length, page).toBeLessThanOrEqual(10);
  return block;
}

test("curl", async () => {
  const output = await succeeded("bash", ["-euc", tenLines("http.md", "sh")], { cwd: folder, env });
  expect(output).toBe("hello\n{}");
});

test("TypeScript", async () => {
  const program = join(folder, "ten-lines.ts");
  writeFileSync(join(folder, "package.json"), '{"type":"module"}');
  writeFileSync(program, tenLines("typescript.md", "ts"));
  expect(await succeeded(process.execPath, [program], { cwd: folder, env })).toBe(
    "45\nprint(sum(range(10)))\n",
  );
});

test("the command line", async () => {
  const output = await succeeded("bash", ["-euc", tenLines("cli.md", "sh")], { cwd: folder, env });
  expect(output).toContain("\n45\n");
  expect(output).toContain("\nprint(sum(range(10)))\n");
});
