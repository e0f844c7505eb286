import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { expect, it } from "vitest";
import { holdHome } from "./hold-home.ts";

it("lets one host at a time have a home; the second waits for the end of the first", async () => {
  const home = mkdtempSync(join(tmpdir(), "cloche-hold-"));
  const endFirst = await holdHome(home, () => undefined);
  let isTold = false;
  let isHeld = false;
  const second = holdHome(home, () => {
    isTold = true;
  }).then((end) => {
    isHeld = true;
    return end;
  });
  // `onWait` is called after a second.
  while (!isTold) await sleep(20);
  expect(isHeld).toBe(false);
  await endFirst();
  await (await second)();
  rmSync(home, { recursive: true });
});
