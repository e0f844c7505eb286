/** A home or a cache into which another user of the computer could put files. */
import { chmod, mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it, onTestFinished, vi } from "vitest";
import { checkOwners } from "./preflight.ts";

const uid = process.getuid?.() ?? 0;
let folder = "";
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "cloche-owners-"));
});
afterEach(async () => await rm(folder, { recursive: true, force: true }));

it("folders of the service's user alone are right, and those that are not there", async () => {
  await writeFile(join(folder, "file"), "");
  await mkdir(join(folder, "folder"));
  expect(await checkOwners([folder, join(folder, "none")], uid)).toMatchObject({ state: "ok" });
});

it("the service's user is root, whoever asks what is missing", async () => {
  onTestFinished(() => void vi.restoreAllMocks());
  vi.spyOn(process, "getuid").mockReturnValue(1_000);
  const check = await checkOwners(["/usr"]);
  expect(check).toMatchObject({ state: "ok" });
});

it("a folder of another user is refused, and one with a file of another user", async () => {
  const check = await checkOwners([folder], uid + 1);
  expect(check).toMatchObject({
    state: "failed",
    found: expect.stringContaining(`${folder} belongs to user ${uid}`) as string,
  });
});

it("a folder that is a file is left to the start to report", async () => {
  const file = join(folder, "file");
  await writeFile(file, "");
  expect(await checkOwners([file], uid)).toMatchObject({ state: "ok" });
  expect(await checkOwners([file], uid + 1)).toMatchObject({ state: "failed" });
});

it.each([0o777, 0o775, 0o757])(
  "a folder with mode %o, into which others may write, is refused",
  async (mode) => {
    await chmod(folder, mode);
    const remedy = `chmod go-w ${folder}`;
    expect(await checkOwners([folder], uid)).toMatchObject({ state: "failed", remedy });
  },
);
