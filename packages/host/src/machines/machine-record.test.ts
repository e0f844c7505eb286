import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  appendFileSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { type MachineRecord, MachineRecordStore } from "./machine-record.ts";

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "cloche-records-"));
});
afterEach(() => {
  rmSync(dir, { recursive: true, force: true });
});

const pool = (): string => join(dir, "pool");
const run = (): string => join(dir, "run");
const storeAfterStart = (): MachineRecordStore => new MachineRecordStore(pool(), run());
const powerCut = (): void => rmSync(run(), { recursive: true });
const phasesOf = async (store: MachineRecordStore): Promise<string[]> =>
  (await store.load()).records.map(({ phase }) => phase);
const record = (phase: MachineRecord["phase"]): MachineRecord =>
  ({ version: 1, id: "sbx-1", phase, controlSecret: "s" }) as MachineRecord;

async function withRunning(): Promise<MachineRecordStore> {
  const store = storeAfterStart();
  await store.load();
  await store.makeDirectory("sbx-1");
  await store.save(record("starting"), { durable: false });
  await store.save(record("running"), { durable: true });
  return store;
}

test("a crash of the service loses nothing, a power cut what was not durable", async () => {
  const store = await withRunning();
  await store.save(record("suspending"), { durable: false });
  expect(await phasesOf(storeAfterStart())).toEqual(["suspending"]);
  powerCut();
  expect(await phasesOf(storeAfterStart())).toEqual(["running"]);
});

test("a machine that a power cut found before its first durable write is a stray", async () => {
  const store = storeAfterStart();
  await store.load();
  await store.makeDirectory("sbx-1");
  await store.save(record("starting"), { durable: false });
  powerCut();
  expect(await storeAfterStart().load()).toEqual({ records: [], strays: ["sbx-1"] });
});

test("what could not be written durably counts for nothing, what was noted before it still does", async () => {
  const store = await withRunning();
  await store.save(record("suspending"), { durable: false });
  const file = join(pool(), "machines", "sbx-1");
  const content = readFileSync(join(file, "machine.json"));
  rmSync(file, { recursive: true });
  await expect(store.save(record("suspended"), { durable: true })).rejects.toThrow();
  mkdirSync(file);
  writeFileSync(join(file, "machine.json"), content);
  expect(await phasesOf(storeAfterStart())).toEqual(["suspending"]);
});

test("a store that is closed has all on the disk and leaves no note", async () => {
  const store = await withRunning();
  await store.save(record("stopped"), { durable: false });
  await store.close();
  expect(existsSync(join(run(), "machines"))).toBe(false);
  expect(await phasesOf(storeAfterStart())).toEqual(["stopped"]);
});

test("a removed machine leaves no note, and one of a machine that is gone goes at the next start", async () => {
  const store = await withRunning();
  await store.save(record("destroying"), { durable: false });
  await store.remove("sbx-1");
  const notes = join(run(), "machines", "records");
  appendFileSync(notes, `sbx-2 ${JSON.stringify(record("running"))}\n`);
  const next = storeAfterStart();
  expect(await next.load()).toEqual({ records: [], strays: [] });
  await next.close();
  expect(existsSync(notes)).toBe(false);
});
