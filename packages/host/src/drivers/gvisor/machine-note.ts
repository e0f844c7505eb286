// Which unit a machine has: <machine dir>/gvisor.json. Survives a crash of the service whole; what a power cut tears is taken
// for none, since the unit went with it.
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

/** Whole or not at all, whenever we are killed. */
export async function writeNote(dir: string, note: MachineNote): Promise<void> {
  await writeFile(`${noteIn(dir)}.new`, JSON.stringify(note));
  await rename(`${noteIn(dir)}.new`, noteIn(dir));
}

/** Repeatable. */
export async function removeNote(dir: string): Promise<void> {
  await rm(noteIn(dir), { force: true });
}
