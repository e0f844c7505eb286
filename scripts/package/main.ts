// `prepack` and `postpack` of the packages that are published: `main.ts build sdk`, `main.ts restore sdk`.
import { join } from "node:path";
import { buildCli } from "./build-cli.ts";
import { buildSdk } from "./build-sdk.ts";
import { type PackageName, publishManifest, restoreManifest } from "./manifests.ts";
import { root } from "./sdk-declarations.ts";

const builds: Record<PackageName, (folder: string) => Promise<void>> = { sdk: buildSdk, cli: buildCli };
const [step, name] = process.argv.slice(2) as [string, PackageName];

if (!["build", "restore"].includes(step) || builds[name] === undefined)
  throw new Error("usage: main.ts build|restore sdk|cli");
restoreManifest(name);
if (step === "build") {
  await builds[name](join(root, "packages", name, "dist"));
  publishManifest(name);
}
