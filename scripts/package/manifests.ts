// package.json of a package as it is packed, out of the workspace's, which leads to sources. Packages are handed out as files: their
// names belong to nobody in a registry, so nothing is published there, and nothing may be asked of one.
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { root } from "./sdk-declarations.ts";

export type PackageName = "sdk" | "cli";
type Manifest = Record<string, unknown>;

const both = (name: string, types = name): object => ({
  import: { types: `./dist/${types}.d.ts`, default: `./dist/${name}.js` },
  require: { types: `./dist/${types}.d.cts`, default: `./dist/${name}.cjs` },
});

const published: Record<PackageName, (workspace: Manifest) => Manifest> = {
  sdk: ({ dependencies }) => ({
    sideEffects: false,
    main: "./dist/node.cjs",
    types: "./dist/node.d.cts",
    exports: {
      ".": {
        bun: both("index"),
        deno: both("index"),
        browser: both("browser", "index"),
        node: both("node"),
        default: both("index"),
      },
      "./node": both("node"),
      "./package.json": "./package.json",
    },
    dependencies: { ws: (dependencies as Record<string, string>).ws },
  }),
  cli: () => ({ bin: { cloche: "dist/cloche.cjs" } }),
};

/** The workspace's file while the packed one is in its place. */
const kept = (name: PackageName): string => join(root, "packages", name, "dist", "workspace-package.json");
const inPlace = (name: PackageName): string => join(root, "packages", name, "package.json");

/** Puts the packed file in place; `restoreManifest` undoes it, also after a pack that was killed. */
export function publishManifest(name: PackageName): void {
  restoreManifest(name);
  const text = readFileSync(inPlace(name), "utf8");
  const workspace = JSON.parse(text) as Manifest;
  const { version, description, license, type, scripts } = workspace;
  const manifest = {
    name: workspace.name,
    version,
    private: true,
    description,
    keywords: ["sandbox", "agents", "isolation", "gvisor", "microvm"],
    license,
    type,
    engines: { node: ">=20.3" },
    ...published[name](workspace),
    files: ["dist", "!dist/workspace-package.json"],
    // Run by nobody who installs it; a pack after one that was killed begins by putting the workspace's file back.
    scripts,
  };
  mkdirSync(join(root, "packages", name, "dist"), { recursive: true });
  writeFileSync(kept(name), text);
  copyFileSync(join(root, "LICENSE"), join(root, "packages", name, "LICENSE"));
  replace(inPlace(name), `${JSON.stringify(manifest, null, 2)}\n`);
}

export function restoreManifest(name: PackageName): void {
  if (!existsSync(kept(name))) return;
  replace(inPlace(name), readFileSync(kept(name), "utf8"));
  rmSync(join(root, "packages", name, "LICENSE"), { force: true });
  rmSync(kept(name));
}

/** Whole or not at all: the service may be starting meanwhile. */
function replace(path: string, text: string): void {
  writeFileSync(`${path}.new`, text);
  renameSync(`${path}.new`, path);
}
