// One sandbox, and what happens to the cluster around it: each way is tried under load, and gives a row of the table that the test
// prints. A row is right when the sandbox's process is the same and went on, when no request fails once the way is over, and when none
// fails meanwhile that is held.
import { setTimeout as sleep } from "node:timers/promises";
import type { Counted, LabCluster } from "./cluster.ts";
import type { LoadReport } from "./load.ts";
import type { LabNode } from "./node.ts";

const REQUESTS = 50;
/** So that the load meets the cluster as it was, too. */
const BEFORE_MS = 500;

export interface Way {
  readonly what: string;
  act(): Promise<unknown>;
  /** Whether all is as it should be again. */
  isOver(): Promise<boolean>;
  /** How long requests are held meanwhile: where it takes longer, they may fail. Default: for as long as it takes. */
  readonly heldMs?: number;
  /** What else must be so then; answers what is not. */
  problems?(): Promise<string[]>;
}

interface Row {
  what: string;
  /** From the begin of the act. */
  overMs: number;
  before: Counted;
  after: Counted;
  meanwhile: LoadReport;
  problems: string[];
}

const HEAD = ["what happens", "", "over in", "pid", "counter", "failed after", "meanwhile", "longest"];
const WIDTHS = [46, 5, 8, 8, 14, 12, 11, 8];

export class Ways {
  readonly rows: Row[] = [];
  readonly #cluster: LabCluster;
  readonly #node: LabNode;
  readonly #sandbox: string;

  constructor(cluster: LabCluster, node: LabNode, sandbox: string) {
    this.#cluster = cluster;
    this.#node = node;
    this.#sandbox = sandbox;
  }

  async try(way: Way): Promise<void> {
    const before = await this.#cluster.count(this.#sandbox, 1);
    const load = await this.#cluster.load(this.#sandbox);
    await sleep(BEFORE_MS);
    const beganMs = performance.now();
    await way.act();
    await this.#node.until(`the end of: ${way.what}`, () => way.isOver());
    const overMs = performance.now() - beganMs;
    const meanwhile = await load.end();
    const after = await this.#cluster.count(this.#sandbox, REQUESTS);
    const problems = [...problemsOf(before, after), ...((await way.problems?.()) ?? [])];
    if (meanwhile.failed > 0 && overMs < (way.heldMs ?? Number.POSITIVE_INFINITY))
      problems.push(`${meanwhile.failed} requests failed meanwhile`);
    const row = { what: way.what, overMs, before, after, meanwhile, problems };
    this.rows.push(row);
    console.error(lineOf(row));
    const errors = [...meanwhile.errors, ...new Set(after.errors)];
    for (const text of [...problems, ...errors]) console.error(`  ${text}`);
  }

  print(): void {
    console.log(`\n${inColumns(HEAD)}`);
    for (const row of this.rows) console.log(lineOf(row));
  }

  get wrong(): number {
    return this.rows.filter(({ problems }) => problems.length > 0).length;
  }
}

function problemsOf(before: Counted, after: Counted): string[] {
  const problems: string[] = [];
  if (after.pid !== before.pid || after.start !== before.start) problems.push("the process is another one");
  if (!(after.count > before.count)) problems.push("the process did not go on");
  if (after.failed > 0) problems.push(`${after.failed} requests failed afterwards`);
  return problems;
}

const seconds = (ms: number): string => `${(ms / 1_000).toFixed(1)} s`;

const lineOf = ({ what, overMs, before, after, meanwhile, problems }: Row): string =>
  inColumns([
    what,
    problems.length === 0 ? "right" : "WRONG",
    seconds(overMs),
    `${before.pid}, ${after.pid}`,
    `${before.count} → ${after.count}`,
    `${after.failed} of ${REQUESTS}`,
    `${meanwhile.failed} of ${meanwhile.asked}`,
    seconds(meanwhile.longestMs),
  ]);

const inColumns = (cells: readonly string[]): string =>
  cells
    .map((cell, at) => (at < 2 ? cell.padEnd(WIDTHS[at] ?? 0) : cell.padStart(WIDTHS[at] ?? 0)))
    .join("  ")
    .trimEnd();
