// The cloche command as it is published: a launcher, and one file with all that most commands need, which starts as fast as Node
// lets it.
import { chmodSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { build, type BuildOptions, type Plugin } from "esbuild";
import { root } from "./sdk-declarations.ts";

const neededMajor = 20;
const require = createRequire(import.meta.url);

/**
 * Node's own modules are loaded by whoever uses them first, not by the file that imports them: child_process, net, http and
 * their like take milliseconds, and most commands need few of them. Those that are functions can be extended by classes, and
 * are loaded with Node anyway.
 */
const lazyBuiltins: Plugin = {
  name: "lazy-builtins",
  setup(plugin) {
    plugin.onResolve({ filter: /^node:/ }, ({ path, kind, namespace }) => {
      const isLate = namespace === "lazy-builtin" || kind !== "import-statement";
      if (isLate || path === "node:process" || typeof require(path) !== "object")
        return { path, external: true };
      return { path, namespace: "lazy-builtin" };
    });
    plugin.onLoad({ filter: /^/, namespace: "lazy-builtin" }, ({ path }) => ({
      contents: `for (const name of ${JSON.stringify(Object.keys(require(path) as object))})
        Object.defineProperty(exports, name, { enumerable: true, get: () => require(${JSON.stringify(path)})[name] });`,
    }));
  },
};

const { version } = JSON.parse(readFileSync(join(root, "packages/cli/package.json"), "utf8")) as {
  version: string;
};

/** Read by every Node, so that one that is too old says so. What was compiled is kept in the user's own cache. */
const launcher = `#!/usr/bin/env node
"use strict";
var node = process.versions.node;
var words = process.argv.slice(2);
if (Number(node.split(".")[0]) < ${neededMajor}) {
  console.error("cloche: Node ${neededMajor} or newer is needed; this is Node " + node);
  process.exitCode = 1;
} else if (words.length === 1 && (words[0] === "--version" || words[0] === "-V")) {
  require("node:fs").writeSync(1, ${JSON.stringify(`${version}\n`)});
} else {
  var home = process.env.XDG_CACHE_HOME || (process.env.HOME && process.env.HOME + "/.cache");
  var module_ = require("node:module");
  if (module_.enableCompileCache && (home || process.env.NODE_COMPILE_CACHE))
    module_.enableCompileCache(process.env.NODE_COMPILE_CACHE || home + "/cloche/compiled");
  require("./main.cjs");
}
`;

/** Where the command's own imports lead. */
const sdkOfCli = "@cloche/sdk/node";

const shared: BuildOptions = {
  bundle: true,
  platform: "node",
  target: `node${neededMajor}`,
  format: "cjs",
  minifySyntax: true,
  minifyWhitespace: true,
  legalComments: "inline",
  define: { "import.meta.dirname": "__dirname" },
  external: ["bufferutil", "utf-8-validate"],
  logLevel: "warning",
};

/** A package that is imported where it is used, by name, and where it is to be found from. */
type Late = Map<string, string>;
const fileOf = (name: string): string => `./${name.replaceAll(/\W+/g, "-").replace(/^-/, "")}.cjs`;

/** What a command alone imports, when it runs, is a file of its own: read by nobody else. */
const latePackages = (late: Late): Plugin => ({
  name: "late-packages",
  setup(plugin) {
    plugin.onResolve({ filter: /^[@a-z][^:]*$/ }, ({ path, kind, resolveDir }) => {
      if (kind !== "dynamic-import") return undefined;
      late.set(path, resolveDir);
      return { path: fileOf(path), external: true };
    });
  },
});

/** Such a file has its SDK from the main one: there is one of each class. */
const sdkOfMain: Plugin = {
  name: "sdk-of-main",
  setup(plugin) {
    plugin.onResolve({ filter: /^@cloche\/sdk(\/node)?$/ }, ({ path }) => ({
      path,
      namespace: "sdk-of-main",
    }));
    plugin.onResolve({ filter: /^\.\/main\.cjs$/ }, ({ path }) => ({ path, external: true }));
    plugin.onLoad({ filter: /^/, namespace: "sdk-of-main" }, () => ({
      contents: 'module.exports = require("./main.cjs").sdk;',
    }));
  },
};

export async function buildCli(folder: string): Promise<void> {
  rmSync(folder, { recursive: true, force: true });
  const late: Late = new Map();
  const cli = join(root, "packages/cli/src");
  const main = `import * as sdk from ${JSON.stringify(sdkOfCli)};\nimport "./main.ts";\nexport { sdk };\n`;
  await build({
    ...shared,
    stdin: { contents: main, resolveDir: cli },
    outfile: join(folder, "main.cjs"),
    plugins: [latePackages(late), lazyBuiltins],
  });
  for (const [name, resolveDir] of late) {
    const contents = `export * from ${JSON.stringify(name)};`;
    const outfile = join(folder, fileOf(name));
    await build({ ...shared, stdin: { contents, resolveDir }, outfile, plugins: [sdkOfMain, lazyBuiltins] });
  }
  writeFileSync(join(folder, "cloche.cjs"), launcher);
  chmodSync(join(folder, "cloche.cjs"), 0o755);
}
