import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { silentLog } from "@cloche/base";
import { expect, test } from "vitest";
import { GvisorDriver, type GvisorOptions } from "./driver.ts";

test("a machine whose note a power cut tore can be stopped, adopted as none, and made anew", async () => {
  const dir = mkdtempSync(join(tmpdir(), "cloche-torn-"));
  try {
    const note = join(dir, "gvisor.json");
    const driver = new GvisorDriver({ log: silentLog, runDir: dir } as unknown as GvisorOptions);
    const files = { id: "sbx-torn", dir, diskImage: "" };
    for (const torn of ["", '{"unit":']) {
      writeFileSync(note, torn);
      expect(await driver.adopt(files)).toBeUndefined();
      await driver.stopMachine(files);
      expect(existsSync(note)).toBe(false);
    }
  } finally {
    rmSync(dir, { recursive: true });
  }
});
