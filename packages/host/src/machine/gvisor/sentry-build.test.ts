import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { identify } from "../process-identity.ts";
import { letHaveFastPath, sentryBuildOf, tame } from "./sentry-build.ts";

const id = "zyoTxYO_dlUpUAUTVtSw/XbCA6SyeYW0oQqpTnpBu/g1E5DfOvbURQCnPsw60i/UPAMUD9Y7p1BgsCexGgV";

/** A program with that note of a build. */
function program(build: string, name = "Go\0\0"): string {
  const folder = mkdtempSync(join(tmpdir(), "cloche-build-"));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  const lengths = Buffer.alloc(12);
  [4, build.length, 4].forEach((value, index) => lengths.writeUInt32LE(value, index * 4));
  const path = join(folder, "runsc");
  writeFileSync(
    path,
    Buffer.concat([Buffer.alloc(3_996, 1), lengths, Buffer.from(name + build), Buffer.alloc(9)]),
  );
  return path;
}

test("knows a runsc by what Go calls its build, and leaves all others alone", () => {
  expect(sentryBuildOf(program(id))).toMatchObject({ id });
  expect(sentryBuildOf(program(`${id.slice(0, -1)}W`))).toBeUndefined();
  expect(sentryBuildOf(program(id.slice(0, -1)))).toBeUndefined();
  expect(sentryBuildOf(program(id, "GNU\0"))).toBeUndefined();
  expect(sentryBuildOf(process.execPath)).toBeUndefined();
});

test("writes to no process but the one that is meant, and to none that looks otherwise", async () => {
  const build = sentryBuildOf(program(id));
  const self = await identify(process.pid);
  if (build === undefined || self === undefined) throw new Error("neither may be missing");
  // This process has other things there, or nothing: it would not live on.
  expect(await tame(self, build)).toBe(false);
  expect(await letHaveFastPath({ ...self, startTime: `${self.startTime}0` }, build, false)).toBe(false);
  expect(await letHaveFastPath({ pid: 4_194_305, startTime: "1" }, build, true)).toBe(false);
});

test("a code change leaves as many bytes as were there", () => {
  const build = sentryBuildOf(program(id));
  if (build === undefined) throw new Error("it may not be missing");
  expect(build.patching.instead).toHaveLength(build.patching.built.length);
  expect(build.patching.built).toHaveLength(25);
});
