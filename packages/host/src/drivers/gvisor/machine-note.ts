/**
 * Note of a machine's unit: <machine dir>/gvisor.json. It survives a crash of the service whole. A note torn by a power cut counts
 * as none, because the power cut ended the unit too.
 */
import { rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { readJsonFile } from "@cloche/base";

export interface MachineNote {
  unit: string;
}

const noteIn = (dir: string): string => join(dir, "gvisor.json");

export async function readNote(dir: string): Promise<MachineNote | undefined> {
  try {
    return (await readJsonFile(noteIn(dir))) as MachineNote | undefined;
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}

/** Atomic, even if the service is killed at any point. */
export async function writeNote(dir: string, note: MachineNote): Promise<void> {
  await writeFile(`${noteIn(dir)}.new`, JSON.stringify(note));
  await rename(`${noteIn(dir)}.new`, noteIn(dir));
}

/** Repeatable. */
export async function removeNote(dir: string): Promise<void> {
  await rm(noteIn(dir), { force: true });
}
