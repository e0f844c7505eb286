// Records of machines on a real XFS that loses its power: what was durable is whole, whatever was written after it.
import { mkdir, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { type MachineRecord, MachineRecordStore } from "../../packages/host/src/machines/machine-record.ts";
import { run } from "../../packages/base/src/commands/run.ts";
import { cannotRun } from "./lab.ts";

test.skipIf(cannotRun)(
  "a power cut after a change that was not durable leaves the record before it",
  async () => {
    const dir = await mkdtemp(join(tmpdir(), "cloche-records-"));
    onTestFinished(() => rm(dir, { recursive: true, force: true }));
    const [image, pool] = [join(dir, "pool.xfs"), join(dir, "pool")];
    await mkdir(pool);
    await run(["truncate", "-s", "320M", image]);
    await run(["mkfs.xfs", "-q", image]);
    const mount = () => run(["mount", "-o", "loop", image, pool]);
    await mount();
    onTestFinished(() => run(["umount", pool]).then(() => undefined));

    const record = { version: 1, id: "sbx-1", phase: "running", controlSecret: "s" } as MachineRecord;
    const store = new MachineRecordStore(pool, join(dir, "run"));
    await store.load();
    await store.makeDirectory(record.id);
    await store.save(record, { durable: true });
    await store.save({ ...record, phase: "suspending" }, { durable: false });
    // Its log is written, what it has of files' content in memory is not: as after half a minute.
    await run(["xfs_io", "-x", "-c", "shutdown -f", pool]);
    await run(["umount", pool]);
    await rm(join(dir, "run"), { recursive: true, force: true });
    await mount();

    const { records, strays } = await new MachineRecordStore(pool, join(dir, "run")).load();
    expect({ phases: records.map(({ phase }) => phase), strays }).toEqual({
      phases: ["running"],
      strays: [],
    });
  },
);
