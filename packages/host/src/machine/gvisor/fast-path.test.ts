import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { identify } from "../process-identity.ts";
import { allowFastPath, fastPathOf, tameFastPath } from "./fast-path.ts";

const build = "zyoTxYO_dlUpUAUTVtSw/XbCA6SyeYW0oQqpTnpBu/g1E5DfOvbURQCnPsw60i/UPAMUD9Y7p1BgsCexGgV";

/** A program with that note of a build. */
function program(id: string, name = "Go\0\0"): string {
  const folder = mkdtempSync(join(tmpdir(), "cloche-build-"));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  const lengths = Buffer.alloc(12);
  [4, id.length, 4].forEach((value, index) => lengths.writeUInt32LE(value, index * 4));
  const path = join(folder, "runsc");
  writeFileSync(
    path,
    Buffer.concat([Buffer.alloc(3_996, 1), lengths, Buffer.from(name + id), Buffer.alloc(9)]),
  );
  return path;
}

test("knows a runsc by what Go calls its build, and leaves all others alone", () => {
  expect(fastPathOf(program(build))).toMatchObject({ build });
  expect(fastPathOf(program(`${build.slice(0, -1)}W`))).toBeUndefined();
  expect(fastPathOf(program(build.slice(0, -1)))).toBeUndefined();
  expect(fastPathOf(program(build, "GNU\0"))).toBeUndefined();
  expect(fastPathOf(process.execPath)).toBeUndefined();
});

test("writes to no process but the one that is meant, and to none that looks otherwise", async () => {
  const layout = fastPathOf(program(build));
  const self = await identify(process.pid);
  if (layout === undefined || self === undefined) throw new Error("neither may be missing");
  // This process has other things there, or nothing: it would not live on.
  expect(await tameFastPath(self, layout)).toBe(false);
  expect(await allowFastPath({ ...self, startTime: `${self.startTime}0` }, layout, false)).toBe(false);
  expect(await allowFastPath({ pid: 4_194_305, startTime: "1" }, layout, true)).toBe(false);
});
