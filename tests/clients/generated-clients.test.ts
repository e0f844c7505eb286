// Clients that others' generators make of both OpenAPI documents: nothing is left out of them, they compile, and they work.
import { copyFileSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, dirname, join } from "node:path";
import { afterAll, beforeAll, expect, inject, test } from "vitest";
import { contractTools, nodeTools, pythonWithTools, succeeded } from "../fixtures/python-tools.ts";
import { repositoryRoot } from "../fixtures/service.ts";

const { target } = inject("service");
const surfaces = ["gateway", "dataplane"];
const documentOf = (surface: string): string => join(repositoryRoot, `spec/${surface}.openapi.yaml`);
let folder = "";
let env: NodeJS.ProcessEnv = {};

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "cloche-generated-"));
  const { PATH } = process.env;
  env = { PATH, CLOCHE_URL: target.gatewayUrl, CLOCHE_API_KEY: target.apiKey };
});

afterAll(() => rmSync(folder, { recursive: true, force: true }));

test("openapi-python-client makes clients of both, leaves nothing out, and they work", async () => {
  const python = await pythonWithTools(join(contractTools, "requirements.txt"));
  const bin = dirname(python);
  // The generator formats what it made by the ruff that it finds.
  const withTools = { ...env, PATH: `${bin}${delimiter}${env["PATH"]}`, PYTHONDONTWRITEBYTECODE: "1" };
  for (const surface of surfaces) {
    const made = ["--path", documentOf(surface), "--output-path", join(folder, `cloche_${surface}`)];
    const words = ["-m", "openapi_python_client", "generate", "--meta", "none", "--fail-on-warning", ...made];
    const output = await succeeded(python, words, { env: withTools });
    expect(output).not.toMatch(/warning|unsupported/i);
  }
  await succeeded(python, ["-m", "compileall", "-q", folder], { env: withTools });
  const script = join(contractTools, "generated-client.py");
  const output = await succeeded(python, [script], { env: { ...withTools, PYTHONPATH: folder } });
  expect(output).toBe("all done\n");
});

test("openapi-typescript makes types of both, strict TypeScript takes them, and calls typed by them work", async () => {
  const modules = await nodeTools(contractTools);
  symlinkSync(modules, join(folder, "node_modules"));
  const generator = join(modules, "openapi-typescript/bin/cli.js");
  for (const surface of surfaces) {
    const words = [generator, documentOf(surface), "-o", join(folder, `${surface}.d.ts`)];
    await succeeded(process.execPath, words, { cwd: folder });
  }
  const program = join(folder, "generated-client.ts");
  copyFileSync(join(contractTools, "generated-client.ts.in"), program);
  writeFileSync(join(folder, "package.json"), '{"type":"module"}');
  const types = ["--typeRoots", join(repositoryRoot, "node_modules/@types"), "--types", "node"];
  const strict = ["--noEmit", "--strict", "--exactOptionalPropertyTypes", "--module", "nodenext"];
  const words = [...strict, "--allowImportingTsExtensions", "--target", "es2024", ...types, program];
  const tsc = join(repositoryRoot, "node_modules/typescript/bin/tsc");
  await succeeded(process.execPath, [tsc, ...words], { cwd: folder });
  expect(await succeeded(process.execPath, [program], { cwd: folder, env })).toBe("all done\n");
});
