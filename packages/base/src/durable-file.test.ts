import { execFileSync } from "node:child_process";
import { mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it } from "vitest";
import { openPlainFile, readJsonFile } from "./durable-file.ts";

let folder = "";
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "cloche-files-"));
});
afterEach(async () => await rm(folder, { recursive: true }));

it("reads JSON, and answers undefined where there is no file", async () => {
  await writeFile(join(folder, "a"), '{"b":1}');
  expect(await readJsonFile(join(folder, "a"))).toEqual({ b: 1 });
  expect(await readJsonFile(join(folder, "none"))).toBeUndefined();
});

it("does not wait for a FIFO, and follows no link", async () => {
  execFileSync("mkfifo", [join(folder, "fifo")]);
  await writeFile(join(folder, "secret"), "{}");
  await symlink(join(folder, "secret"), join(folder, "link"));
  await expect(openPlainFile(join(folder, "fifo"))).rejects.toMatchObject({ code: "EINVAL" });
  await expect(readJsonFile(join(folder, "fifo"))).rejects.toMatchObject({ code: "EINVAL" });
  await expect(openPlainFile(join(folder, "link"))).rejects.toMatchObject({ code: "ELOOP" });
  await expect(openPlainFile("/dev/zero")).rejects.toMatchObject({ code: "EINVAL" });
});
