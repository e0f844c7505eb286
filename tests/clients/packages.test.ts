// The published packages as a stranger has them: packed, installed into an empty folder, run on every runtime, bundled.
import { once } from "node:events";
import { copyFileSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { build as esbuild } from "esbuild";
import { rolldown } from "rolldown";
import { afterAll, beforeAll, describe, expect, inject, onTestFinished, test } from "vitest";
import { succeeded } from "../fixtures/python-tools.ts";
import { runtimeProgram } from "../fixtures/runtimes.ts";
import { repositoryRoot, runCommand } from "../fixtures/service.ts";

const { target, home, runtime } = inject("service");
const page = readFileSync(join(repositoryRoot, "docs/typescript.md"), "utf8");
const [, tenLines = ""] = /## Ten lines\n+```ts\n([^]*?)```/.exec(page) ?? [];
const answer = "45\n\nprint(sum(range(10)))\n\n";
/** Fewer words of the same kind, for the many places where it must run. */
const brief = `const cloche = new Cloche();
const sandbox = await cloche.create();
let streamed = "";
for await (const event of sandbox.execStream(["echo", "streamed"])) if (event.type === "stdout") streamed += event.data;
const cat = await sandbox.processes.start(["cat"], { stdin: "open" });
const attachment = await cat.attach();
await attachment.write("typed\\n");
let typed = "";
for await (const event of attachment) {
  if (event.type === "stdout") typed += new TextDecoder().decode(event.data);
  if (typed.includes("\\n")) break;
}
await sandbox.files.write("/root/a", "written");
console.log(streamed + typed.trim(), await sandbox.files.readText("/root/a"));
await sandbox.delete();
await cloche.close();`;
const briefAnswer = "streamed\ntyped written\n";
const esm = `import { Cloche } from "@cloche/sdk";\n${brief}\n`;
const cjs = `const { Cloche } = require("@cloche/sdk");\n(async () => {\n${brief}\n})();\n`;

let folder = "";
const { PATH, HOME } = process.env;
/** What a program is told where the service is: its address and key, and on its own machine nothing but the home. */
const named = {
  PATH,
  HOME,
  CLOCHE_HOME: "/nonexistent",
  CLOCHE_URL: target.gatewayUrl,
  CLOCHE_API_KEY: target.apiKey,
};
const local = { PATH, HOME, CLOCHE_HOME: home };

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), "cloche-packages-"));
  const words = [
    "pack",
    "--silent",
    "-w",
    "packages/sdk",
    "-w",
    "packages/cli",
    "--pack-destination",
    folder,
  ];
  await succeeded("npm", words, { cwd: repositoryRoot });
  const tarballs = readdirSync(folder).map((name) => join(folder, name));
  writeFileSync(join(folder, "package.json"), JSON.stringify({ name: "empty", private: true }));
  await succeeded("npm", ["install", "--silent", "--prefer-offline", ...tarballs], { cwd: folder });
  writeFileSync(join(folder, "brief.mjs"), esm);
  writeFileSync(join(folder, "brief.cjs"), cjs);
  writeFileSync(join(folder, "ten.mjs"), tenLines);
});

afterAll(() => rmSync(folder, { recursive: true, force: true }));

const run = (program: string, words: string[], env: NodeJS.ProcessEnv = named): Promise<string> =>
  succeeded(program, words, { cwd: folder, env });

test("a pack leaves the checkout as it was, and the package holds nothing of the workspace", async () => {
  const changed = await succeeded("git", ["status", "--porcelain", "packages/sdk", "packages/cli"]);
  expect(changed.split("\n").filter((line) => /package\.json|LICENSE|\.new/.test(line))).toEqual(
    expect.not.arrayContaining([expect.stringContaining("LICENSE")]),
  );
  const manifest = readFileSync(join(repositoryRoot, "packages/sdk/package.json"), "utf8");
  expect(manifest).toContain("./src/index.ts");
  const installed = join(folder, "node_modules/@cloche");
  for (const name of ["sdk", "cli"]) {
    const dist = join(installed, name, "dist");
    for (const file of readdirSync(dist))
      expect(readFileSync(join(dist, file), "utf8")).not.toMatch(/from "@cloche\/|require\("@cloche\//);
    expect(readdirSync(join(installed, name))).toEqual(
      expect.arrayContaining(["LICENSE", "README.md", "package.json"]),
    );
  }
});

// What differs is the runtime here, not the one of the sandboxes.
if (runtime === "gvisor") {
  describe("the SDK", () => {
    test("runs the ten lines of docs/typescript.md on the oldest Node, told nothing but where its service's home is", async () => {
      expect(tenLines.trim().split("\n").filter(Boolean).length).toBeLessThanOrEqual(12);
      expect(await run(await runtimeProgram("node", "20.20.2"), ["ten.mjs"], local)).toBe(answer);
    });

    test.each(["20.20.2", "22.23.3", "24.21.0"])("works in Node %s as ESM and CommonJS", async (version) => {
      const node = version.startsWith("24") ? process.execPath : await runtimeProgram("node", version);
      expect(await run(node, ["brief.mjs"])).toBe(briefAnswer);
      expect(await run(node, ["brief.cjs"])).toBe(briefAnswer);
    });

    test.each([
      ["bun", "1.4.5", []],
      ["deno", "2.9.6", ["run", "--allow-env", "--allow-net", "--allow-read", "--no-prompt"]],
    ] as const)("works in %s %s as ESM and CommonJS", async (name, version, words) => {
      const program = await runtimeProgram(name, version);
      expect(await run(program, [...words, "brief.mjs"])).toBe(briefAnswer);
      expect(await run(program, [...words, "brief.cjs"])).toBe(briefAnswer);
    });

    test("says in one line that Node 18 is too old", async () => {
      const node = await runtimeProgram("node", "18.20.8");
      const { code, stderr } = await runCommand(node, ["ten.mjs"], { cwd: folder, env: named });
      expect(code).not.toBe(0);
      expect(stderr).toMatch(
        /^ClocheSdkError: Node 18\.20\.8 is too old for @cloche\/sdk .*: use Node 20 or newer, .*$/m,
      );
      const command = await runCommand(node, ["node_modules/@cloche/cli/dist/cloche.cjs", "ls"], {
        cwd: folder,
      });
      expect([command.code, command.stderr]).toEqual([
        1,
        "cloche: Node 20 or newer is needed; this is Node 18.20.8\n",
      ]);
    });

    test.each(["node", "browser"] as const)(
      "is bundled for %s by esbuild and by rolldown",
      async (platform) => {
        const input = join(folder, "brief.mjs");
        const one = join(folder, `esbuild-${platform}.mjs`);
        await esbuild({
          entryPoints: [input],
          outfile: one,
          bundle: true,
          format: "esm",
          platform,
          external: ["ws"],
        });
        const bundle = await rolldown({ input, platform, external: ["ws", /^node:/] });
        const two = join(folder, `rolldown-${platform}`);
        await bundle.write({ dir: two, format: "esm", entryFileNames: "main.mjs" });
        for (const file of [one, join(two, "main.mjs")]) {
          if (platform === "browser")
            expect(readFileSync(file, "utf8")).not.toMatch(/["']node:|(from|import|require)\W{1,3}ws["']/);
          // What a browser has, Node 24 has too.
          expect(await run(process.execPath, [file])).toBe(briefAnswer);
        }
      },
    );

    test("has types for ESM, CommonJS and bundlers that need none of the workspace's settings", async () => {
      writeFileSync(join(folder, "a.mts"), tenLines);
      writeFileSync(
        join(folder, "b.cts"),
        'import { Cloche } from "@cloche/sdk";\nexport const c: Cloche = new Cloche({ caCert: "" });\n',
      );
      writeFileSync(
        join(folder, "c.ts"),
        'import { openDataPlane, type EntryInfo } from "@cloche/sdk";\nexport const f = (token: string): Promise<EntryInfo> =>\n  openDataPlane({ domain: "", token: async () => ({ jwt: token, expires_at_unix: 1 }) }).files.stat("/");\n',
      );
      const tsc = join(repositoryRoot, "node_modules/typescript/bin/tsc");
      const strict = [
        tsc,
        "--noEmit",
        "--strict",
        "--ignoreConfig",
        "--target",
        "es2022",
        "--lib",
        "es2022,esnext.disposable,dom,dom.iterable,dom.asynciterable",
      ];
      const types = ["--types", "node", "--typeRoots", join(repositoryRoot, "node_modules/@types")];
      await run(process.execPath, [...strict, ...types, "--module", "nodenext", "a.mts", "b.cts"]);
      await run(process.execPath, [
        ...strict,
        "--types",
        "",
        "--module",
        "esnext",
        "--moduleResolution",
        "bundler",
        "--customConditions",
        "browser",
        "c.ts",
      ]);
    });
  });

  describe("the command", () => {
    const cloche = "node_modules/.bin/cloche";
    test("is installed by the line of docs/cli.md, from the packed file alone", async () => {
      const page = readFileSync(join(repositoryRoot, "docs/cli.md"), "utf8");
      const line = /^npm install --global .*$/m.exec(page)?.[0] ?? "";
      expect(readFileSync(join(repositoryRoot, "README.md"), "utf8")).toContain(line);
      const prefix = join(folder, "prefix");
      // No registry answers there: nothing may be asked of one.
      const settings = { npm_config_prefix: prefix, npm_config_registry: "http://127.0.0.1:9" };
      const env = { PATH, HOME, ...settings, npm_config_pack_destination: folder };
      const installed = line.replace('"./$(', '"$(printf %s/ "$npm_config_pack_destination")$(');
      await succeeded("sh", ["-ec", installed], { cwd: repositoryRoot, env });
      const {
        name,
        version,
        private: isPrivate,
      } = JSON.parse(readFileSync(join(prefix, "lib/node_modules/@cloche/cli/package.json"), "utf8")) as {
        name: string;
        version: string;
        private: boolean;
      };
      expect([name, isPrivate]).toEqual(["@cloche/cli", true]);
      expect(await run(join(prefix, "bin/cloche"), ["--version"])).toBe(`${version}\n`);
      expect(await run(join(prefix, "bin/cloche"), ["ls", "--json"], local)).toMatch(/^[[{]|^$/);
    });
    test("is of the checkout or of nobody: npx takes no package of its name from a registry", async () => {
      const asked: string[] = [];
      const registry = createServer((request, response) => {
        asked.push(request.url ?? "");
        const { port } = registry.address() as AddressInfo;
        const dist = { tarball: `http://127.0.0.1:${port}/cloche.tgz`, shasum: "0".repeat(40) };
        const versions = { "1.0.0": { name: "cloche", version: "1.0.0", bin: { cloche: "evil.js" }, dist } };
        response.setHeader("content-type", "application/json");
        response.end(JSON.stringify({ name: "cloche", "dist-tags": { latest: "1.0.0" }, versions }));
      }).listen(0, "127.0.0.1");
      await once(registry, "listening");
      onTestFinished(() => void registry.close());
      const { port } = registry.address() as AddressInfo;
      // A clone in which nothing is installed yet.
      const clone = mkdtempSync(join(tmpdir(), "cloche-clone-"));
      onTestFinished(() => rmSync(clone, { recursive: true }));
      for (const name of ["package.json", ".npmrc"])
        copyFileSync(join(repositoryRoot, name), join(clone, name));
      const env = {
        ...named,
        npm_config_registry: `http://127.0.0.1:${port}/`,
        npm_config_cache: join(clone, "npx"),
        npm_config_prefix: clone,
        // The settings of this computer's users may forbid it too.
        npm_config_userconfig: join(clone, "user"),
        npm_config_globalconfig: join(clone, "global"),
      };
      const { code, stderr } = await runCommand("npx", ["cloche", "ls"], { cwd: clone, env });
      expect(code).not.toBe(0);
      expect(stderr).toContain("canceled");
      expect(asked.filter((url) => url.includes(".tgz"))).toEqual([]);
    });
    test.each(["20.20.2", "24.21.0"])("works in Node %s from its one file", async (version) => {
      const node = version.startsWith("24") ? process.execPath : await runtimeProgram("node", version);
      const { version: own } = JSON.parse(
        readFileSync(join(repositoryRoot, "packages/cli/package.json"), "utf8"),
      ) as { version: string };
      expect(await run(node, [cloche, "--version"])).toBe(`${own}\n`);
      const id = (JSON.parse(await run(node, [cloche, "create", "--json"])) as { id: string }).id;
      writeFileSync(join(folder, "copied"), "copied");
      await run(node, [cloche, "cp", "copied", `${id}:/root/copied`]);
      expect(await run(node, [cloche, "exec", id, "cat", "/root/copied"])).toBe("copied");
      const tty = await run(node, [cloche, "exec", "-t", id, "--", "sh", "-c", "test -t 1 && echo yes"]);
      expect(tty).toContain("yes");
      await run(node, [cloche, "rm", id]);
      const up = await runCommand(node, [cloche, "up"], { cwd: folder, env: named });
      expect([up.code, up.stderr]).toEqual([
        2,
        expect.stringContaining("in its checkout, run npx cloche up"),
      ]);
    });
  });
}
