/** What `cloche update` finds old, against a Debian archive of our own in a folder: real apt, real packages, no network. */
import { createHash } from "node:crypto";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it } from "vitest";
import { installedVersions, PrivateApt } from "../../packages/artifacts/src/apt/private-apt.ts";
import { checkArtifacts, type Updatable, updateArtifacts } from "../../packages/artifacts/src/update.ts";
import { currentVersioned, obtainVersioned } from "../../packages/artifacts/src/store/versioned.ts";
import { run } from "../../packages/base/src/commands/run.ts";

let folder: string;
let cache: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "cloche-update-"));
  cache = join(folder, "cache");
  await mkdir(join(folder, "archive"));
  await mkdir(cache);
});
afterEach(() => rm(folder, { recursive: true }));

const progress = (): void => undefined;
const sources = (): string[] => [`deb [trusted=yes] file:${folder}/archive ./`];

/** Puts these packages into the archive in place of what it had. */
async function publish(packages: Record<string, { version: string; depends?: string }>): Promise<void> {
  const index: string[] = [];
  for (const [name, { version, depends }] of Object.entries(packages)) {
    const root = join(folder, `${name}_${version}`);
    await mkdir(join(root, "DEBIAN"), { recursive: true });
    await mkdir(join(root, "opt"));
    await writeFile(join(root, "opt", name), version);
    const control = `Package: ${name}\nVersion: ${version}\nArchitecture: all\nMaintainer: t <t@example.org>\n${depends ? `Depends: ${depends}\n` : ""}Description: x\n`;
    await writeFile(join(root, "DEBIAN", "control"), control);
    const file = `${name}_${version}.deb`;
    await run(["dpkg-deb", "--root-owner-group", "--build", root, join(folder, "archive", file)]);
    const data = await readFile(join(folder, "archive", file));
    const sha256 = createHash("sha256").update(data).digest("hex");
    index.push(`${control}Filename: ./${file}\nSize: ${data.length}\nSHA256: ${sha256}\n`);
  }
  await writeFile(join(folder, "archive", "Packages"), index.join("\n"));
}

async function apt(): Promise<PrivateApt> {
  const opened = await PrivateApt.open(join(cache, "apt"), sources());
  await opened.update();
  return opened;
}

/** An artifact of the package `tool`, made as busybox is. */
const tool = (): Updatable => ({
  name: "tool",
  request: {
    kind: "tool",
    inputs: { recipe: 1 },
    build: async (into) => (await apt()).unpack(["tool"], into),
  },
  outdated: async (mirror, { madeFrom }) => {
    const { tool: available = "" } = await mirror.newest(["tool"]);
    const installed = madeFrom?.versions["tool"] ?? "";
    return installed === available ? [] : [{ package: "tool", installed, available }];
  },
});
const check = () => checkArtifacts(cache, [tool()], progress, sources());

it("says what is missing, current and old, and makes the old anew beside what is in use", async () => {
  await publish({ tool: { version: "1.0-1" } });
  expect(await check()).toMatchObject([{ state: "missing", changes: [] }]);
  const first = await obtainVersioned(cache, tool().request, progress);
  expect(await check()).toMatchObject([
    { state: "current", changes: [], made_at: expect.stringMatching(/Z$/) },
  ]);

  await publish({ tool: { version: "1.0-1+deb12u1" } });
  const states = await check();
  const change = { package: "tool", installed: "1.0-1", available: "1.0-1+deb12u1" };
  expect(states).toMatchObject([{ state: "old", changes: [change] }]);
  await updateArtifacts(cache, [tool()], states, progress);
  expect(await readFile(join(first.path, "opt/tool"), "utf8")).toBe("1.0-1");
  const second = await currentVersioned(cache, tool().request);
  expect(await readFile(join(second?.path ?? "", "opt/tool"), "utf8")).toBe("1.0-1+deb12u1");
  expect(await check()).toMatchObject([{ state: "current" }]);
});

it("compares what is installed in a root with the archive, package by package", async () => {
  await publish({ one: { version: "2" }, two: { version: "1" }, other: { version: "9" } });
  const status = join(folder, "status");
  const stanza = (name: string, version: string, state = "install ok installed"): string =>
    `Package: ${name}\nStatus: ${state}\nArchitecture: all\nVersion: ${version}\n`;
  await writeFile(
    status,
    [
      stanza("one", "1"),
      stanza("two", "1"),
      stanza("ours", "7"),
      stanza("other", "1", "deinstall ok config-files"),
    ].join("\n"),
  );
  const installed = await installedVersions(status);
  expect(installed).toEqual({ one: "1", two: "1", ours: "7" });
  const changes = await (await apt()).outdated(status, Object.keys(installed));
  expect(changes).toEqual([{ package: "one", installed: "1", available: "2" }]);
});

it("finds the package that a metapackage depends on now", async () => {
  await publish({ meta: { version: "2", depends: "kernel-2" }, "kernel-2": { version: "2" } });
  const mirror = await apt();
  const wanted = await mirror.dependencies(["meta"]);
  expect(await mirror.newest(wanted)).toEqual({ "kernel-2": "2" });
  await expect(mirror.newest(["none"])).rejects.toThrow("has no package none");
});

it("that cannot reach the mirror says so, and what is there goes on", async () => {
  await publish({ tool: { version: "1" } });
  const made = await obtainVersioned(cache, tool().request, progress);
  await rm(join(folder, "archive"), { recursive: true });
  await expect(check()).rejects.toThrow(/what the Debian mirror has failed: .*repair: .*goes on working/s);
  expect(await obtainVersioned(cache, tool().request, progress)).toEqual(made);
});
