/** Every group of cells by name: what it measures, what it needs, how it is opened. */
import { commandCell } from "./command-cell.ts";
import { driftCell } from "./drift-cell.ts";
import { edgeCells } from "./edge.ts";
import { idleCells } from "./idle-cells.ts";
import type { Lab } from "./lab.ts";
import { largeFileCells } from "./large-file-cells.ts";
import { lifecycleCells } from "./lifecycle-cells.ts";
import { clientCells, cloneCells, idleCrowdCells, memoryCells } from "./peer-cells.ts";
import { bootCell, type QemuBench } from "./qemu-cells.ts";
import type { Cell } from "./runner.ts";
import { execCell, fileCell } from "./sandbox-cells.ts";
import { chainCell } from "./service-cells.ts";
import { startCell } from "./start-cell.ts";
import { storeCell } from "./store-cells.ts";
import { terminalCells } from "./terminal-cells.ts";

interface Opened {
  cell?: Cell;
  cells?: Cell[];
  close(): Promise<void> | void;
}
/** What the wanted number of samples becomes under --quick and --samples. */
export type Samples = (full: number) => number;

export interface Group {
  name: string;
  about: string;
  /** Names of what `open` opens, in its order, where one of them can be wanted alone: `peers:clones`. */
  parts?: readonly string[];
  /** One after another: each is closed before the next is opened. */
  open: ((samples: Samples) => Promise<Opened> | Opened)[];
}

/** Those that need no service. */
export const bareGroups: readonly Group[] = [
  {
    name: "edge",
    about:
      "a request through the edge against one to the agent; 64 connections against a bare node:https echo",
    open: [(samples) => edgeCells(samples(15))],
  },
];

export const labGroups = (lab: () => Lab): readonly Group[] => [
  {
    name: "exec",
    about: "exec of true over HTTPS with auth against a spawn in the sandbox",
    open: [(samples) => execCell(lab(), samples(100))],
  },
  {
    name: "command",
    about: "the packed cloche command, exec of true, against the same Node with nothing to do",
    open: [(samples) => commandCell(lab(), samples(40))],
  },
  {
    name: "files",
    about: "1 MiB written and read against runsc exec with cat",
    open: [(samples) => fileCell(lab(), samples(60))],
  },
  {
    name: "large",
    about: "256 MiB up and down with curl against a bare node:https server on the same disk",
    open: [(samples) => largeFileCells(lab(), samples(12))],
  },
  {
    name: "terminal",
    about: "first byte of a terminal, a key press to its echo",
    open: [(samples) => terminalCells(lab(), samples(60))],
  },
  {
    name: "store",
    about: "durable set against a no-op and one fdatasync in the same sandbox",
    open: [(samples) => storeCell(lab(), samples(60))],
  },
  {
    name: "services",
    about: "start of a chain of ten services against the sum of their health delays",
    open: [(samples) => chainCell(lab(), samples(12))],
  },
  {
    name: "lifecycle",
    about: "create, fork, checkpoint, restore, suspend and resume against runsc's own commands",
    open: [(samples) => lifecycleCells(lab(), samples(20))],
  },
  {
    name: "idle",
    about: "memory and CPU of an idle sandbox against runsc with a sleeping node",
    open: [(samples) => idleCells(lab(), samples(3))],
  },
  {
    name: "drift",
    about: "many creates and deletes: whether the last are as fast as the first",
    open: [(samples) => driftCell(lab(), samples(200))],
  },
  {
    name: "start",
    about: "npm start again on a set-up home, to ready",
    open: [(samples) => startCell(lab(), samples(5))],
  },
  {
    name: "peers",
    about: "creates by 1 to 50 clients, clones by 1 to 100, memory snapshots by size, 100 idle sandboxes",
    parts: ["memory", "clones", "crowd", "clients"],
    open: [
      (samples) => memoryCells(lab(), samples(5)),
      (samples) => cloneCells(lab(), samples(3)),
      (samples) => idleCrowdCells(lab(), samples(60)),
      (samples) => clientCells(lab(), samples(3)),
    ],
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
    about: "a virtual machine from its template against a cold boot",
    open: [(samples) => ({ cells: [bootCell(bench(), samples(12))], close: () => undefined })],
  },
];
