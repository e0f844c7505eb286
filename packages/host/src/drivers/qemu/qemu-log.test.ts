import { appendFile, mkdtemp, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, it, onTestFinished } from "vitest";
import { vmFiles } from "./command-line.ts";
import { QemuLog } from "./qemu-log.ts";

const bytesPerMib = 1024 * 1024;

async function emptyDirectory(): Promise<string> {
  const dir = await mkdtemp(join(tmpdir(), "qemu-log-"));
  onTestFinished(() => rm(dir, { recursive: true }));
  return dir;
}

it("begins anew beyond its bound, and is left alone below it", async () => {
  const dir = await emptyDirectory();
  const log = new QemuLog(dir);
  await log.shorten();
  await appendFile(join(dir, vmFiles.log), "virtio: bogus descriptor\n");
  await log.shorten();
  expect((await stat(join(dir, vmFiles.log))).size).toBe(25);
  await appendFile(join(dir, vmFiles.log), Buffer.alloc(bytesPerMib));
  await log.shorten();
  expect((await stat(join(dir, vmFiles.log))).size).toBe(0);
});

it("shows its end, however long it is", async () => {
  const dir = await emptyDirectory();
  const log = new QemuLog(dir);
  expect(await log.tail()).toBe("");
  await appendFile(join(dir, vmFiles.log), "short");
  expect(await log.tail()).toBe("short");
  await appendFile(join(dir, vmFiles.log), `${"x".repeat(bytesPerMib)}load of migration failed`);
  expect(await log.tail()).toMatch(/^x+load of migration failed$/);
  expect(await log.tail()).toHaveLength(4_096);
});
