// docs/clusters.md as a reader types it, on the part's lab: `up` has run before, and a host other than h1 may have the sandbox. The
// blocks of the real cluster name computers, a PostgreSQL and a bucket that are not here: their settings and commands are compared.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, inject, it } from "vitest";
import { unknownSettings } from "../../packages/base/src/config.ts";
import { repositoryRoot, runCommand } from "../fixtures/service.ts";
import { theCluster } from "./cluster.ts";

const { lab } = theCluster();
const base = inject("lab");
const page = readFileSync(join(repositoryRoot, "docs/clusters.md"), "utf8");
const blocks = [...page.matchAll(/^```sh\n([^]*?)^```/gm)].map(([, block = ""]) => block);
const ofLab = blocks.filter((block) => block.includes("npm run lab") || block.includes("exec first"));
const settings = join(base, "env");

const type = (lines: string) =>
  runCommand("bash", ["-euo", "pipefail", "-c", `. ${settings}\n${lines}`], {
    env: {
      ...process.env,
      CLOCHE_LAB: base,
      PATH: `${join(repositoryRoot, "node_modules/.bin")}:${process.env["PATH"]}`,
    },
    cwd: repositoryRoot,
    deadlineMs: 150_000,
  });

it("the lab, and a sandbox that outlives its host", async () => {
  const exported = Object.entries(lab.clientSettings()).map(([name, value]) => `export ${name}='${value}'\n`);
  writeFileSync(settings, exported.join(""), { mode: 0o600 });
  const lines = ofLab
    .join("")
    .replace("npm run lab -- up\n", "")
    .replace("/var/tmp/cloche-lab/env", settings);
  const [before = "", after] = lines.split("npm run lab -- lose h1");
  expect(after).toBeDefined();
  const first = await type(before);
  expect(first.code, first.stdout + first.stderr).toBe(0);
  const host = (await type("npx cloche ls --json")).stdout.match(/"host_id": "(h\d)"/)?.[1];
  const second = await type(`npm run lab -- lose ${host}${after}npx cloche rm first`);
  expect(second.code, second.stdout + second.stderr).toBe(0);
  expect(second.stdout).toMatch(/^\d+ sleep 1d$/m);
});

it("what is typed on a real cluster names settings and commands that there are", async () => {
  const others = blocks.filter((block) => !ofLab.includes(block)).join("");
  const names = [...others.matchAll(/\bCLOCHE_\w+/g)].map(([name]) => name);
  expect(names.length).toBeGreaterThan(5);
  expect(unknownSettings(Object.fromEntries(names.map((name) => [name, ""])))).toEqual([]);
  const known = (await type("npx cloche __complete ''")).stdout
    .split("\n")
    .map((line) => line.split("\t")[0]);
  const commands = [...others.matchAll(/npx cloche ([a-z-]+)/g)].map(([, command]) => command);
  expect(commands.length).toBeGreaterThan(3);
  for (const command of commands) expect(known).toContain(command);
});
