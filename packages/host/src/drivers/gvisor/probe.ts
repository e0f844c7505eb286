/**
 * Tests whether this runsc can hold machines. A small program (native/gvisor/runsc-probe.c) runs a set-uid program and holds a
 * deleted file open; it is frozen and thawed twice without work in between, then saved and restored.
 *
 * Owns two units, which are destroyed before it resolves. Called once, at the start of the driver.
 */
import { copyFile, chmod, mkdir, readFile, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { ClocheError } from "@cloche/protocol";
import type { Unit } from "./unit.ts";
import { slotMount } from "./bundle.ts";

export interface ProbeParts {
  /** Path of the compiled program. */
  readonly program: string;
  /** As `runsc --version` says. */
  readonly version: string;
  /** A unit that runs this command in place of the agent. */
  make(argv: readonly string[]): Promise<Unit>;
  destroy(unit: Unit): Promise<void>;
}

const probeProgram = "setuid-probe";
const waitMs = 15_000;
const pollMs = 5;
const freezes = 2;

/** Throws failed_precondition, which says what this runsc cannot do and what would help. */
export async function probeRunsc(parts: ProbeParts): Promise<void> {
  let doing = "start a sandbox";
  const units: Unit[] = [];
  const make = async (): Promise<Unit> => {
    const unit = await parts.make([`${slotMount}/${probeProgram}`, slotMount]);
    units.push(unit);
    await copyFile(parts.program, join(unit.slotDir, probeProgram));
    await chmod(join(unit.slotDir, probeProgram), 0o4755);
    return unit;
  };
  try {
    const unit = await make();
    await unit.start();
    await goesOn(unit);
    doing = "run set-uid programs";
    if ((await readFile(join(unit.slotDir, "setuid"), "utf8")) !== "0")
      throw new Error("no rights were gained");
    doing = "go on after it was frozen";
    for (let round = 0; round < freezes; round += 1) {
      await unit.freeze(true);
      await unit.freeze(false);
    }
    await goesOn(unit);
    doing = "save a deleted file that is open";
    const image = join(unit.directory, "image");
    await mkdir(image);
    await unit.saveMemory(image);
    doing = "restore what it saved";
    const restored = await make();
    await restored.restore(image);
    await goesOn(restored);
    await writeFile(join(restored.slotDir, "ask"), "");
    const answer = await until(async () => {
      const text = await readFile(join(restored.slotDir, "answer"), "utf8");
      // The program rewrites the file at every tick, and empties it first.
      if (text === "") throw new Error("its program does not answer");
      return text;
    });
    if (answer !== "held") throw new Error(`a restored file says ${JSON.stringify(answer)}`);
  } catch (error) {
    throw new ClocheError(
      "failed_precondition",
      `runsc ${parts.version} cannot ${doing} here; unset CLOCHE_RUNSC to use the one that Cloche builds, or see docs/operations.md`,
      { cause: error },
    );
  } finally {
    for (const unit of units) await parts.destroy(unit);
  }
}

/** Waits until the program writes new ticks. */
async function goesOn(unit: Unit): Promise<void> {
  const ticks = join(unit.slotDir, "ticks");
  const size = async (): Promise<number> => (await stat(ticks).catch(() => ({ size: 0 }))).size;
  const before = await size();
  await until(async () => {
    if ((await size()) <= before + 1) throw new Error("its program does not go on");
  });
}

async function until<Answer>(attempt: () => Promise<Answer>): Promise<Answer> {
  const end = performance.now() + waitMs;
  for (;;) {
    try {
      return await attempt();
    } catch (error) {
      if (performance.now() > end) throw error;
    }
    await sleep(pollMs);
  }
}
