// The one lab that the files of the part share (vitest's global set-up), brought up before the first and removed after the last.
// `CLOCHE_TEST_LAB` names the folder of a lab that runs already, which is then used and left alone.
import { randomBytes } from "node:crypto";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { TestProject } from "vitest/node";
import { cacheFolder } from "../fixtures/service.ts";
import { Lab } from "../lab/lab.ts";

declare module "vitest" {
  interface ProvidedContext {
    lab: string;
  }
}

export default async (project: TestProject): Promise<() => Promise<void>> => {
  const given = process.env["CLOCHE_TEST_LAB"];
  if (given !== undefined) {
    project.provide("lab", given);
    return async () => undefined;
  }
  const homes = process.env["CLOCHE_TEST_HOMES"] || "/var/tmp";
  const base = join(homes, `cloche-lab-${process.pid}-${randomBytes(4).toString("hex")}`);
  const lab = await Lab.up({ base, cache: cacheFolder, progress: () => undefined });
  project.provide("lab", base);
  return async () => {
    const log = process.env["CLOCHE_TEST_LOG"];
    if (log !== undefined) {
      mkdirSync(log, { recursive: true });
      writeFileSync(join(log, "cluster.log"), lab.logTails(100));
    }
    await Lab.found(base).down();
  };
};
