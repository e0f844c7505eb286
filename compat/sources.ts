/** A copy of an upstream's sources at the pinned commit: from a folder of checkouts (CLOCHE_COMPAT_SOURCES), else cloned. */
import { existsSync, mkdirSync } from "node:fs";
import { join } from "node:path";
import { succeeded } from "../tests/fixtures/python-tools.ts";

/** Unpacks into `folder`. A checkout lies at `<owner>/<name>` or `<name>` below the folder; a bare one will do. */
export async function takeSources(repository: string, commit: string, folder: string): Promise<void> {
  const checkout = checkoutOf(repository) ?? (await cloned(repository, commit, `${folder}.git`));
  mkdirSync(folder, { recursive: true });
  const archive = `${folder}.tar`;
  await succeeded("git", ["-C", checkout, "archive", "-o", archive, commit]);
  await succeeded("tar", ["-xf", archive, "-C", folder]);
}

function checkoutOf(repository: string): string | undefined {
  const sources = process.env["CLOCHE_COMPAT_SOURCES"];
  if (sources === undefined) return undefined;
  const places = [repository, repository.split("/")[1] ?? ""].map((name) => join(sources, name));
  const found = places.find((place) => existsSync(place));
  if (found === undefined) throw new Error(`CLOCHE_COMPAT_SOURCES has neither ${places.join(" nor ")}`);
  return found;
}

async function cloned(repository: string, commit: string, folder: string): Promise<string> {
  await succeeded("git", ["init", "--quiet", "--bare", folder]);
  const url = `https://github.com/${repository}.git`;
  await succeeded("git", ["-C", folder, "fetch", "--quiet", "--depth", "1", url, commit]);
  return folder;
}
