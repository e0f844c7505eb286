// The copy of runsc in huge pages: made once for a version, used by real sandboxes, done without where it cannot be.
import { execFileSync } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, readlinkSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { silentLog } from "@cloche/base";
import { afterEach, beforeEach, expect, test } from "vitest";
import { inHugePages, unmountHugePages } from "../../packages/host/src/machine/gvisor/huge-pages.ts";
import { mountAt } from "../../packages/host/src/sys/mounts.ts";
import { HostLab } from "./host-lab.ts";

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "cloche-huge-"));
});
afterEach(async () => {
  await unmountHugePages(join(folder, "program"));
  rmSync(folder, { recursive: true, force: true });
});

test("copies a program once, another version in its place, and leaves nothing", async () => {
  const program = join(folder, "some");
  const dir = join(folder, "program");
  writeFileSync(program, "#!/bin/sh\necho first\n", { mode: 0o755 });
  const first = await inHugePages(program, dir, silentLog);
  expect(first.startsWith(`${dir}/some-`)).toBe(true);
  expect(execFileSync(first, { encoding: "utf8" })).toBe("first\n");
  expect((await mountAt(dir))?.options).toContain("huge=always");
  expect(await inHugePages(program, dir, silentLog)).toBe(first);
  writeFileSync(program, "#!/bin/sh\necho the second\n");
  const second = await inHugePages(program, dir, silentLog);
  expect(execFileSync(second, { encoding: "utf8" })).toBe("the second\n");
  expect(readdirSync(dir).map((name) => join(dir, name))).toEqual([second]);
  await unmountHugePages(dir);
  await unmountHugePages(dir);
  expect(await mountAt(dir)).toBeUndefined();
});

test("does without where there is no place for it", async () => {
  const program = join(folder, "some");
  writeFileSync(program, "");
  expect(await inHugePages(program, join(program, "below"), silentLog)).toBe(program);
  expect(await inHugePages(join(folder, "none"), join(folder, "program"), silentLog)).toBe(
    join(folder, "none"),
  );
  expect(await mountAt(join(folder, "program"))).toBeUndefined();
});

test("sandboxes run out of it, those of before a restart too", async () => {
  const lab = await HostLab.open();
  try {
    const { sandboxId } = await lab.create();
    await lab.restart();
    expect(await lab.exec(sandboxId, "echo", "still")).toBe("still");
    const units = join(lab.runDir, "gvisor", "units");
    const programs = readdirSync(units).map((name) => {
      const record = JSON.parse(readFileSync(join(units, name, "unit.json"), "utf8")) as {
        sandbox?: { pid: number };
      };
      return readlinkSync(`/proc/${record.sandbox?.pid}/exe`);
    });
    expect(programs.length).toBeGreaterThan(0);
    for (const program of programs) expect(program).toContain("/runsc-");
  } finally {
    await lab.destroyAll();
    await lab.close();
  }
  expect(await mountAt(join(lab.runDir, "gvisor", "program"))).toBeUndefined();
});
