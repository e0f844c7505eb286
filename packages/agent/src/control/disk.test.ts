import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import type { Spawner } from "../spawner/index.ts";
import type { Store } from "../store/store.ts";
import { type DiskServices, SandboxDisk } from "./disk.ts";

let path: string;
let calls: string[];
let guestStarts: () => Promise<void>;
let load: () => void;
let disk: SandboxDisk;

beforeEach(() => {
  path = mkdtempSync(join(tmpdir(), "cloche-disk-"));
  calls = [];
  guestStarts = async () => undefined;
  load = () => undefined;
  const called = (name: string) => async (): Promise<void> => void calls.push(name);
  const spawner = {
    attach: async () => {
      await guestStarts();
      calls.push("guest");
    },
    detach: called("detach"),
  };
  const services = {
    load: () => {
      calls.push("load");
      load();
    },
    unload: called("unload"),
  };
  const store = { ready: () => calls.push("ready"), close: () => calls.push("close") };
  disk = new SandboxDisk(
    path,
    "",
    spawner as unknown as Spawner,
    store as unknown as Store,
    services as unknown as DiskServices,
  );
});
afterEach(() => rmSync(path, { recursive: true, force: true }));

test("reads what lies on the disk while the guest starts, and is attached when both are done", async () => {
  await disk.attach("");
  expect(calls).toEqual(["load", "ready", "guest"]);
  expect(disk.attached).toBe(true);
});

test("forgets what it read where the guest does not start, and can be asked again", async () => {
  guestStarts = () => Promise.reject(new Error("no guest"));
  await expect(disk.attach("")).rejects.toThrow("no guest");
  expect(calls).toEqual(["load", "ready", "detach", "unload", "close"]);
  expect(() => disk.require()).toThrow("not attached");
  guestStarts = async () => undefined;
  await disk.attach("");
  disk.require();
});

test("waits for the guest before it lets go of a disk that cannot be read", async () => {
  const started = Promise.withResolvers<void>();
  guestStarts = () => started.promise;
  load = () => {
    throw new Error("no catalog");
  };
  const attached = disk.attach("");
  setImmediate(started.resolve);
  await expect(attached).rejects.toThrow("no catalog");
  expect(calls).toEqual(["load", "guest", "detach", "unload", "close"]);
});
