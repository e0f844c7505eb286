/**
 * `npm run bench [-- --quick] [-- exec create files store edge travel start qemu]`: every cell's arms interleaved in shuffled
 * order, a table on standard output, everything as JSON in bench/out/latest.json. Exits with 1 when a target is missed.
 */
import { mkdirSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { crowdCell, idleCells } from "./density-cells.ts";
import { edgeCells } from "./edge.ts";
import { openLab, type Lab } from "./lab.ts";
import { churn, forkChain, manyCheckpoints } from "./long-cells.ts";
import { bootCell, forkPauseCell, memoryCell, openQemuBench } from "./qemu-cells.ts";
import { renderTarget, runCell, type Cell, type CellResult } from "./runner.ts";
import { createCell, execCell, fileCell, storeCell } from "./sandbox-cells.ts";
import { dirtyDataCell, extentsCell, storedDataCell } from "./travel/checkpoint-cells.ts";
import { forkCell, sharedDiskCell } from "./travel/fork-cells.ts";
import { suspendCell } from "./travel/suspend-cells.ts";

const words = process.argv.slice(2);
const quick = words.includes("--quick");
const wanted = words.filter((word) => !word.startsWith("--"));
const seed = Number(process.env["CLOCHE_BENCH_SEED"] ?? Date.now() % 1_000_000);
const samples = (full: number): number => (quick ? Math.max(8, Math.round(full / 10)) : full);
const wants = (name: string): boolean => wanted.length === 0 || wanted.includes(name);

console.log(`seed ${seed}${quick ? ", quick" : ""}; Node ${process.version}`);
const results: CellResult[] = [];
const measure = async (cell: Cell): Promise<void> => {
  results.push(await runCell(cell, seed, (line) => console.log(line)));
};

if (wants("edge")) {
  const { cells, close } = await edgeCells();
  try {
    for (const cell of cells) await measure(cell);
  } finally {
    close();
  }
}
if (["exec", "create", "files", "store", "travel", "density", "long", "start"].some(wants)) {
  const lab = await openLab();
  try {
    await sandboxCells(lab);
  } finally {
    await lab.close();
  }
}

async function sandboxCells(lab: Lab): Promise<void> {
  const cellsOf = async (made: { cell?: Cell; cells?: Cell[]; close(): Promise<void> }): Promise<void> => {
    try {
      for (const cell of made.cells ?? (made.cell ? [made.cell] : [])) await measure(cell);
    } finally {
      await made.close();
    }
  };
  if (wants("exec")) await cellsOf(await execCell(lab, samples(200)));
  if (wants("files")) await cellsOf(await fileCell(lab, samples(200)));
  if (wants("store")) await cellsOf(await storeCell(lab, samples(200)));
  if (wants("create")) await cellsOf(await createCell(lab, samples(100)));
  if (wants("travel")) {
    await cellsOf(await storedDataCell(lab, samples(200)));
    await cellsOf(await forkCell(lab, samples(200)));
    await cellsOf(await suspendCell(lab, samples(200)));
    await cellsOf(await dirtyDataCell(lab, samples(20)));
    await cellsOf(await extentsCell(lab, samples(20)));
    await cellsOf(await sharedDiskCell(lab));
  }
  if (wants("density")) {
    await cellsOf(await idleCells(lab, samples(200)));
    await cellsOf(await crowdCell(lab, samples(200), quick ? 20 : 1_000));
  }
  if (wants("long")) {
    await measure(await forkChain(lab, quick ? 10 : 50));
    await measure(await churn(lab, quick ? 50 : 1_000));
    await measure(await manyCheckpoints(lab, quick ? 50 : 1_000));
  }
  if (wants("start")) await cellsOf(startCell(lab));
}

if (wants("qemu")) {
  const bench = await openQemuBench();
  try {
    await measure(bootCell(bench, samples(20)));
    for (const open of [() => forkPauseCell(bench, samples(20)), () => memoryCell(bench)]) {
      const { cell, close } = await open();
      try {
        await measure(cell);
      } finally {
        await close();
      }
    }
  } finally {
    await bench.close();
  }
}

/** `npm start` again on a set-up home, to ready. */
function startCell(lab: Lab): { cell: Cell; close(): Promise<void> } {
  const again = async (): Promise<number> => {
    await lab.service.stop();
    const beganMs = performance.now();
    await lab.service.start();
    return performance.now() - beganMs;
  };
  const bound = { name: "3 s", run: async () => 3_000 };
  const cell: Cell = {
    name: "second npm start, to ready",
    samples: quick ? 3 : 5,
    warmups: 0,
    arms: [{ name: "npm start -- --detach", run: again }, bound],
    targets: [{ arm: "npm start -- --detach", against: "3 s", atMost: 1, from: "issue 2" }],
  };
  return { cell, close: async () => undefined };
}

const targets = results.flatMap((result) => result.targets);
console.log(`\nTargets\n${targets.map((target) => `  ${target.cell}: ${renderTarget(target)}`).join("\n")}`);
const out = fileURLToPath(new URL("out/", import.meta.url));
mkdirSync(out, { recursive: true });
writeFileSync(
  `${out}latest.json`,
  JSON.stringify({ seed, quick, at: new Date().toISOString(), results }, null, 2),
);
if (targets.some((target) => !target.met)) process.exitCode = 1;
