// The systemd units of `deploy`: each starts a command that there is, and what runs machines lets them live.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { repositoryRoot } from "./source-tree.ts";

const folder = join(repositoryRoot, "deploy");
const units = readdirSync(folder).filter((name) => name.endsWith(".service"));
const read = (name: string): string => readFileSync(join(folder, name), "utf8");
/** Of any section; a key that is there twice is an array. */
const settings = (text: string): Map<string, string[]> => {
  const all = new Map<string, string[]>();
  for (const [, key = "", value = ""] of text.matchAll(/^(\w+)=(.*)$/gm))
    all.set(key, [...(all.get(key) ?? []), value]);
  return all;
};
const usage = readFileSync(join(repositoryRoot, "packages/app/src/main.ts"), "utf8");

describe.each(units)("%s", (name) => {
  const unit = settings(read(name));
  const [, command = ""] = /^\/bin\/sh scripts\/run\.sh (\w+)$/.exec(unit.get("ExecStart")?.[0] ?? "") ?? [];

  it("starts a command that there is, with a home of its own", () => {
    expect(usage).toContain(`case "${command}":`);
    const homes = units.map((one) => /^Environment=CLOCHE_HOME=(.*)$/m.exec(read(one))?.[1]);
    expect(unit.get("Environment")?.join(" ")).toContain("CLOCHE_HOME=/var/lib/cloche");
    if (command === "gateway" || command === "edge")
      expect(homes.filter((home) => home === `/var/lib/cloche-${command}`)).toHaveLength(1);
  });

  it("lets machines live where it runs them, and else may do no more than it must", () => {
    const runsMachines = command === "up" || command === "host";
    expect(unit.get("KillMode")).toEqual(runsMachines ? ["process"] : undefined);
    // Each either hides its mounts from the machines or forbids what it does (docs/operations.md).
    const confined = [
      "NoNewPrivileges",
      "PrivateDevices",
      "PrivateTmp",
      "ProtectSystem",
      "RestrictNamespaces",
    ];
    for (const key of confined) expect(unit.has(key), key).toBe(!runsMachines);
  });
});
