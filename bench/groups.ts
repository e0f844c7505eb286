/** Every group of cells by name: what it measures, what it needs, how it is opened. */
import type { TestService } from "../tests/fixtures/service.ts";
import { firstBurstCell, laterBurstCell, staggeredCell } from "./burst-cells.ts";
import { commandCell } from "./command-cell.ts";
import { crowdCell, idleCells } from "./density-cells.ts";
import { edgeCells } from "./edge.ts";
import { idleConnectionsCell } from "./idle-connections-cell.ts";
import type { Lab } from "./lab.ts";
import { largeFileCells } from "./large-file-cells.ts";
import { churn, forkChain, forksAfterRestores, manyCheckpoints } from "./long-cells.ts";
import { bootCell, forkPauseCell, memoryCell, type QemuBench } from "./qemu-cells.ts";
import type { Cell } from "./runner.ts";
import { runtimeCells } from "./runtime-cells.ts";
import { createCell, execCell, fileCell } from "./sandbox-cells.ts";
import { chainCell, supervisorMemoryCell } from "./service-cells.ts";
import { startCell } from "./start-cell.ts";
import { storeCell } from "./store-cells.ts";
import { idleTerminalsCell, terminalCells } from "./terminal-cells.ts";
import { dirtyDataCell, extentsCell, storedDataCell } from "./travel/checkpoint-cells.ts";
import { forkCell, sharedDiskCell } from "./travel/fork-cells.ts";
import { suspendCell } from "./travel/suspend-cells.ts";

interface Opened {
  cell?: Cell;
  cells?: Cell[];
  close(): Promise<void> | void;
  /** Others than the lab's, whose processor time counts too. */
  services?: TestService[];
}
/** What the wanted number of samples becomes under --quick and --samples. */
export type Samples = (full: number) => number;

export interface Group {
  name: string;
  about: string;
  /** Its cells have the same arms: after them all, one table with a line for each cell and a column for each arm. */
  asColumns?: boolean;
  /** Names of what `open` opens, in its order, where one of them can be wanted alone: `travel:fork`. */
  parts?: readonly string[];
  /** One after another: each is closed before the next is opened. */
  open: ((samples: Samples) => Promise<Opened> | Opened)[];
}

const burstFull = 100;
const burstCount = (samples: Samples): number => (samples(200) < 200 ? burstFull / 10 : burstFull);
const only = (cell: Cell): Opened => ({ cell, close: () => undefined });

/** Those that need no service, or start their own. */
export const bareGroups: readonly Group[] = [
  {
    name: "edge",
    about:
      "a request through the edge against one to the agent; 64 connections against a bare node:https echo; 64 streams of HTTP/2",
    open: [(samples) => edgeCells(samples(15))],
  },
  {
    name: "runtimes",
    about: "the same operations on gVisor and on virtual machines, a column for each",
    asColumns: true,
    open: [(samples) => runtimeCells(samples(20))],
  },
];

export const labGroups = (lab: () => Lab): readonly Group[] => [
  {
    name: "exec",
    about:
      "exec of true over HTTPS with auth against runsc exec, crun exec, bwrap and a spawn in the sandbox",
    open: [(samples) => execCell(lab(), samples(200))],
  },
  {
    name: "command",
    about: "the packed cloche command, --version and exec of true, against the same Node with nothing to do",
    open: [(samples) => commandCell(lab(), samples(100))],
  },
  {
    name: "connections",
    about: "exec beside 1,000 connections to the edge that say nothing, against without them",
    open: [(samples) => idleConnectionsCell(lab(), samples(200))],
  },
  {
    name: "files",
    about: "1 MiB written and read against runsc exec with cat",
    open: [(samples) => fileCell(lab(), samples(200))],
  },
  {
    name: "large",
    about: "256 MiB up and down with curl against a bare node:https server on the same disk",
    open: [(samples) => largeFileCells(lab(), samples(20))],
  },
  {
    name: "terminal",
    about: "first byte of a terminal, a key press to its echo, 1 MiB of replay, 100 idle terminals",
    parts: ["live", "idle"],
    open: [(samples) => terminalCells(lab(), samples(200)), () => idleTerminalsCell(lab())],
  },
  {
    name: "store",
    about: "get and durable set against a no-op, one fdatasync, and a bare SQLite in the same sandbox",
    open: [(samples) => storeCell(lab(), samples(200))],
  },
  {
    name: "services",
    about: "start of a chain of ten services against the sum of their health delays",
    open: [(samples) => chainCell(lab(), samples(20))],
  },
  {
    name: "supervisor",
    about: "memory of the agent with 0 and 10 idle services against a bare node",
    open: [(samples) => supervisorMemoryCell(lab(), samples(20))],
  },
  {
    name: "create",
    about: "create to first exec, from the pool and past it, against runsc run, crun run and bwrap",
    open: [(samples) => createCell(lab(), samples(200))],
  },
  {
    name: "staggered",
    about: "create to first exec, one begun every 200 ms, after as many before",
    open: [(samples) => staggeredCell(lab(), samples(200))],
  },
  {
    name: "burst",
    about:
      "a hundred creates at once (ten under --quick), the first and later ones, against as many runsc run true, two at a time",
    parts: ["first", "later"],
    open: [
      (samples) => firstBurstCell(lab(), samples(3), burstCount(samples)),
      (samples) => laterBurstCell(lab(), samples(3), burstCount(samples)),
    ],
  },
  {
    name: "travel",
    about: "checkpoint, live fork, restore, suspend and resume against full copies and runsc's own",
    parts: ["stored", "fork", "suspend", "dirty", "extents", "shared"],
    open: [
      (samples) => storedDataCell(lab(), samples(200)),
      (samples) => forkCell(lab(), samples(200)),
      (samples) => suspendCell(lab(), samples(200)),
      (samples) => dirtyDataCell(lab(), samples(20)),
      (samples) => extentsCell(lab(), samples(20)),
      () => sharedDiskCell(lab()),
    ],
  },
  {
    name: "density",
    about:
      "memory and CPU of an idle sandbox against runsc with a sleeping node; exec in a crowd of idle ones",
    parts: ["idle", "crowd"],
    open: [
      (samples) => idleCells(lab(), samples(200)),
      (samples) => crowdCell(lab(), samples(200), samples(1_000) < 1_000 ? 20 : 1_000),
    ],
  },
  {
    name: "long",
    about:
      "fork chains, creates and deletes, checkpoints, restores: whether the last of many is as fast as the first",
    open: [
      async (samples) => only(await forkChain(lab(), samples(50))),
      async (samples) => only(await forksAfterRestores(lab(), samples(100))),
      async (samples) => only(await churn(lab(), samples(1_000))),
      async (samples) => only(await manyCheckpoints(lab(), samples(1_000))),
    ],
  },
  {
    name: "start",
    about: "npm start again on a set-up home, to ready",
    open: [(samples) => startCell(lab(), samples(5))],
  },
];

/** What is wanted of a group: all of it by its name, or parts as `group:part`; undefined where nothing is. */
export function wantedOf(group: Group, words: readonly string[]): Group | undefined {
  if (words.length === 0 || words.includes(group.name)) return group;
  const open = group.open.filter((_, index) => words.includes(`${group.name}:${group.parts?.[index]}`));
  return open.length === 0 ? undefined : { ...group, open };
}

/** Every word that can be asked for. */
export const namesOf = ({ name, parts = [] }: Group): string[] => [
  name,
  ...parts.map((part) => `${name}:${part}`),
];

export const qemuGroups = (bench: () => QemuBench): readonly Group[] => [
  {
    name: "qemu",
    about: "virtual machines: template against cold boot, pause of a fork, memory of clones",
    open: [
      (samples) => only(bootCell(bench(), samples(20))),
      (samples) => forkPauseCell(bench(), samples(20)),
      () => memoryCell(bench()),
    ],
  },
];
