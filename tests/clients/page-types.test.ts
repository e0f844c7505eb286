// What the pages show besides their ten lines, which other tests run, has the types of the clients: TypeScript by tsc, Python by mypy.
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { clientFolder, pythonWithTools, succeeded } from "../fixtures/python-tools.ts";
import { repositoryRoot } from "../fixtures/service.ts";

/** Pages with code of the clients. */
const pages = ["files", "processes", "python", "typescript", "clients/typescript"];
/** What a block takes for granted, where it does not make it. */
const given = {
  cloche: "import('@cloche/sdk').Cloche",
  sandbox: "import('@cloche/sdk').Sandbox",
  file: "Blob",
  sha256: "string",
  domain: "string",
};
let folder = "";

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "cloche-page-types-"));
  mkdirSync(join(folder, "node_modules/@types"), { recursive: true });
  mkdirSync(join(folder, "node_modules/@cloche"));
  symlinkSync(join(repositoryRoot, "packages/sdk"), join(folder, "node_modules/@cloche/sdk"));
  symlinkSync(join(repositoryRoot, "node_modules/@types/node"), join(folder, "node_modules/@types/node"));
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

function blocksOf(language: "ts" | "python"): { name: string; code: string }[] {
  return pages.flatMap((page) => {
    const text = readFileSync(join(repositoryRoot, `docs/${page}.md`), "utf8");
    const found = [...text.matchAll(new RegExp(`\`\`\`${language}\\n([^]*?)\`\`\``, "g"))];
    return found.map(([, code = ""], at) => ({ name: `${page.replace("/", "_")}_${at}`, code }));
  });
}

function typescript(code: string): string {
  const missing = Object.entries(given).filter(
    ([name]) => !new RegExp(`(?:const|await using) ${name} =`).test(code),
  );
  return `${missing.map(([name, type]) => `declare const ${name}: ${type};`).join("\n")}\nexport {};\n${code}`;
}

async function checkTypeScript(blocks: { name: string; code: string }[]): Promise<string> {
  for (const { name, code } of blocks) writeFileSync(join(folder, `${name}.mts`), typescript(code));
  const options = [
    "--noEmit",
    "--strict",
    "--skipLibCheck",
    "--allowImportingTsExtensions",
    "--types",
    "node",
  ];
  const kinds = [
    "--target",
    "esnext",
    "--module",
    "nodenext",
    "--lib",
    "esnext,dom,dom.iterable,dom.asynciterable",
  ];
  const tsc = join(repositoryRoot, "node_modules/.bin/tsc");
  const files = blocks.map(({ name }) => `${name}.mts`);
  return succeeded(tsc, [...options, ...kinds, "--ignoreConfig", ...files], { cwd: folder });
}

test("the TypeScript of the pages has the SDK's types", async () => {
  const blocks = blocksOf("ts");
  expect(blocks.length).toBeGreaterThan(5);
  await checkTypeScript(blocks);
  const wrong = [{ name: "wrong", code: 'await sandbox.files.uplaod("/srv/data.bin", file);' }];
  await expect(checkTypeScript(wrong)).rejects.toThrow("uplaod");
});

function python(code: string): string {
  const isAsync = /\bawait\b|async with/.test(code);
  const takes = code.includes(" as sandbox:") ? "" : "sandbox: cloche.Sandbox";
  const inner = code.replaceAll(/^from cloche import .*\n/gm, "").replaceAll(/^(?=.)/gm, "    ");
  const head = `${isAsync ? "async def" : "def"} page(${takes}) -> None:`;
  return `import cloche\nfrom cloche import AsyncCloche, Cloche\n\n\n${head}\n${inner}`;
}

async function checkPython(blocks: { name: string; code: string }[]): Promise<string> {
  for (const { name, code } of blocks) writeFileSync(join(folder, `${name}.py`), python(code));
  const env = { PATH: process.env["PATH"], MYPYPATH: join(clientFolder, "src"), HOME: folder };
  const files = blocks.map(({ name }) => `${name}.py`);
  const words = ["-m", "mypy", "--strict", "--cache-dir", join(folder, "mypy"), ...files];
  return succeeded(await pythonWithTools(), words, { cwd: folder, env });
}

test("the Python of the pages has the client's types", async () => {
  const blocks = blocksOf("python");
  expect(blocks.length).toBeGreaterThan(3);
  await checkPython(blocks);
  const wrong = [{ name: "wrong", code: "sandbox.files.raed('/etc/hostname')" }];
  await expect(checkPython(wrong)).rejects.toThrow("raed");
});
