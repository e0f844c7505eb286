// The store on a disk without room: what was answered is there, and the disk can be frozen as it is.
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it } from "vitest";
import { Store, systemStoreClock } from "../../packages/agent/src/store/store.ts";
import { isRoot } from "./guest-fixture.ts";

let folder: string;
beforeEach(() => {
  if (!isRoot) return;
  folder = mkdtempSync(join(tmpdir(), "cloche-full-"));
  execFileSync("mount", ["-t", "tmpfs", "-o", "size=3m", "tmpfs", folder]);
});
afterEach(() => {
  if (!isRoot) return;
  execFileSync("umount", [folder]);
  rmSync(folder, { recursive: true });
});

const key = (number: number): Buffer => Buffer.from(`key-${number}`);
const set = (store: Store, number: number): Promise<boolean[]> =>
  store.apply([{ op: "set", key: key(number), value: Buffer.alloc(60_000, "1"), expiresAtMs: null }]);

it.skipIf(!isRoot)("flushes as far as there is room, and loses nothing", async () => {
  const store = new Store(join(folder, "store.db"), systemStoreClock);
  await set(store, 0);
  store.flush();
  let stored = 1;
  for (; stored < 10; stored += 1) await set(store, stored);
  // The write-ahead log has them; the main file would have to grow for them.
  expect(() => writeFileSync(join(folder, "filler"), Buffer.alloc(4_000_000))).toThrow("ENOSPC");
  store.flush();
  expect(statSync(join(folder, "store.db-wal")).size).toBeGreaterThan(0);
  await expect(
    (async () => {
      for (;;) await set(store, (stored += 1));
    })(),
  ).rejects.toMatchObject({ code: "resource_exhausted", resource: "disk" });
  store.flush();
  store.close();
  // As the disk is found by whoever starts from it, still full and then with room.
  for (const hasRoom of [false, true]) {
    if (hasRoom) rmSync(join(folder, "filler"));
    const again = new Store(join(folder, "store.db"), systemStoreClock);
    for (let number = 0; number < 10; number += 1) expect(again.get(key(number))?.value).toHaveLength(60_000);
    again.flush();
    if (hasRoom) expect(statSync(join(folder, "store.db-wal")).size).toBe(0);
    again.close();
  }
});
