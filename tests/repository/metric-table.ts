import { readFileSync } from "node:fs";
import { join } from "node:path";
import { repositoryRoot } from "./source-tree.ts";

/** Names of the metrics, and of the labels of each, as docs/operations/watch.md lists them. */
export function documentedMetrics(): Map<string, string[]> {
  const page = readFileSync(join(repositoryRoot, "docs/operations/watch.md"), "utf8");
  const [, table = ""] = /^\| metric \| meaning \|\n([^]*?)\n\n/m.exec(page) ?? [];
  const names = table
    .split("\n")
    .flatMap((row) => [...(row.split(" | ")[0] ?? "").matchAll(/`([a-z_]+)(?:\{([a-z_,]+)\})?`/g)]);
  return new Map(names.map(([, name = "", labels]) => [name, labels?.split(",") ?? []]));
}
