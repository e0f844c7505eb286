// Real sandboxes of a runsc whose memory is known: its fast path stays off until work goes on, as the sentry itself sees it,
// and what makes system calls is seldom patched before it has made many.
import { closeSync, openSync, readSync } from "node:fs";
import { readFile, readdir } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { type SentryBuild, sentryBuildOf } from "../../packages/host/src/machine/gvisor/sentry-build.ts";
import type { UnitRecord } from "../../packages/host/src/machine/gvisor/unit.ts";
import { eventually } from "../fixtures/client.ts";
import { HostLab } from "./host-lab.ts";

let lab: HostLab;
let build: SentryBuild;
beforeAll(async () => {
  lab = await HostLab.open();
  const known = sentryBuildOf(lab.artifacts.runsc.path);
  if (known === undefined)
    throw new Error("Debian's runsc is another build: sentry-build.ts has to learn it");
  build = known;
});
afterAll(async () => {
  await lab.destroyAll();
  await lab.close();
});

async function unitOf(sandboxId: string): Promise<UnitRecord> {
  const units = join(lab.runDir, "gvisor", "units");
  for (const name of await readdir(units)) {
    const record = JSON.parse(await readFile(join(units, name, "unit.json"), "utf8")) as UnitRecord;
    if (record.machineId === sandboxId) return record;
  }
  throw new Error(`${sandboxId} has no unit`);
}

/** Whether it may come on, and whether it is, of the sentry and of its programs. */
async function fastPath(sandboxId: string): Promise<{ forbidden: boolean; on: boolean; off: boolean }> {
  const { sandbox } = await unitOf(sandboxId);
  const { fastPath: layout } = build;
  const memory = openSync(`/proc/${sandbox?.pid}/mem`, "r");
  try {
    const at = (address: number, bytes: number): Buffer => {
      const content = Buffer.alloc(bytes);
      expect(readSync(memory, content, 0, bytes, address)).toBe(bytes);
      return content;
    };
    return {
      forbidden: at(layout.forbidden, 1)[0] === 1,
      on: at(layout.on, 4).readUInt32LE() + at(layout.on + 68, 4).readUInt32LE() > 0,
      off: at(layout.state, 8).readBigUInt64LE() === layout.off,
    };
  } finally {
    closeSync(memory);
  }
}
const resting = { forbidden: true, on: false, off: true };
const rests = async (sandboxId: string): Promise<void> => {
  const seen = await eventually(
    () => fastPath(sandboxId),
    (one) => one.forbidden && one.off && !one.on,
    60_000,
  );
  expect(seen).toEqual(resting);
};

test("a sandbox that works has the fast path while it does, also as a fork and after the service was killed", async () => {
  const { sandboxId } = await lab.create();
  const fork = await lab.fork(sandboxId);
  for (const id of [sandboxId, fork.sandboxId]) {
    await rests(id);
    for (let i = 0; i < 5; i += 1) expect(await lab.exec(id, "echo", "brief")).toBe("brief");
    // Asks the kernel again and again.
    const asking = lab.exec(id, "timeout", "6", "dd", "if=/dev/zero", "of=/dev/null", "bs=1").catch(() => "");
    const seen = await eventually(
      () => fastPath(id),
      ({ forbidden, on }) => !forbidden && on,
      60_000,
    );
    expect(seen).toMatchObject({ forbidden: false, on: true });
    await asking;
    await rests(id);
  }
  await lab.restart();
  const asking = lab
    .exec(sandboxId, "timeout", "6", "dd", "if=/dev/zero", "of=/dev/null", "bs=1")
    .catch(() => "");
  const seen = await eventually(
    () => fastPath(sandboxId),
    ({ on }) => on,
    60_000,
  );
  expect(seen.on).toBe(true);
  await asking;
  await rests(sandboxId);
  expect((await unitOf(sandboxId)).tameBuild).toBe(build.id);
});

/** A process has this in its memory once anything of it was patched. */
const PATCHED = "[usertrap]";

test("what is brief is often not patched at all, what calls again and again is", async () => {
  const { sandboxId } = await lab.create();
  const brief = await Promise.all(
    Array.from({ length: 20 }, async () => {
      const maps = await lab.exec(
        sandboxId,
        "sh",
        "-c",
        "for i in 1 2 3 4 5 6 7 8; do cat /proc/self/maps; echo; done",
      );
      return maps.split("\n\n");
    }),
  );
  const all = brief.flat();
  const patched = all.filter((maps) => maps.includes(PATCHED));
  expect(all.length).toBe(160);
  expect(patched.length).toBeGreaterThan(0);
  expect(patched.length).toBeLessThan(all.length);
  const often = "i=0; while [ $i -lt 1000 ]; do read x < /dev/null; i=$((i + 1)); done; cat /proc/$$/maps";
  expect(await lab.exec(sandboxId, "sh", "-c", often)).toContain(PATCHED);
});
