// The cloche command as it is published: a launcher, and one file with all that it needs, which starts as fast as Node lets it.
import { chmodSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { build, type Plugin } from "esbuild";
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

export async function buildCli(folder: string): Promise<void> {
  rmSync(folder, { recursive: true, force: true });
  await build({
    entryPoints: [join(root, "packages/cli/src/main.ts")],
    outfile: join(folder, "main.cjs"),
    bundle: true,
    platform: "node",
    target: `node${neededMajor}`,
    format: "cjs",
    minifySyntax: true,
    minifyWhitespace: true,
    legalComments: "inline",
    define: { "import.meta.dirname": "__dirname" },
    external: ["bufferutil", "utf-8-validate"],
    plugins: [lazyBuiltins],
    logLevel: "warning",
  });
  writeFileSync(join(folder, "cloche.cjs"), launcher);
  chmodSync(join(folder, "cloche.cjs"), 0o755);
}
