// A place where parts of `npm test` run, one at a time, with homes and logs of its own. Two lanes run beside each other: what one
// has on the machine is told from the other's by its homes.
import { mkdirSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { clearHome, clearHomes, leftLogs, openHomes } from "./homes.ts";
import { runPart } from "./part-run.ts";
import type { Part } from "./parts.ts";
import { type Counts, closingLine, noCounts } from "./results.ts";

const OUT = "out";

export interface LaneOptions {
  readonly root: string;
  /** Parts of file names, handed to vitest. */
  readonly filters: readonly string[];
  /** Begins each line with the part's name, so that lines of two lanes can be told apart. */
  readonly named: boolean;
}

export class Lane {
  readonly #options: LaneOptions;
  readonly #homes: string;
  readonly #out: string;
  readonly #logs: string;

  /** `number` from 1: lanes of one run have different ones. */
  constructor(number: number, options: LaneOptions) {
    this.#options = options;
    this.#homes = openHomes(number);
    this.#out = join(this.#homes, OUT);
    this.#logs = join(this.#out, "logs");
    mkdirSync(this.#logs, { recursive: true });
  }

  /** Runs one part and cleans the machine of it; what it left there is a failure more. */
  async run(part: Part, deadlineMs: number): Promise<{ counts: Counts; seconds: string }> {
    const startedAt = performance.now();
    console.log(`\n==> ${part.name}`);
    const counts = await this.#countsOf(part, deadlineMs);
    const seconds = ((performance.now() - startedAt) / 1_000).toFixed(1);
    console.log(`==> ${part.name}: ${closingLine(counts)} in ${seconds} s`);
    if (counts.failed > 0) this.#printLogs();
    rmSync(this.#logs, { recursive: true, force: true });
    mkdirSync(this.#logs, { recursive: true });
    const left = this.#clear();
    if (left.length > 0) {
      counts.failed += 1;
      counts.failures.push(`${part.name} left on the machine:\n    ${left.join("\n    ")}`);
    }
    return { counts, seconds };
  }

  /** Removes whatever is left of the lane's homes. */
  close(): void {
    clearHomes(this.#homes);
  }

  async #countsOf(part: Part, deadlineMs: number): Promise<Counts> {
    if (deadlineMs <= 0) return failed(part, "no time was left for it");
    const whyNot = part.whyNot?.();
    if (whyNot !== undefined) return failed(part, whyNot);
    const { root, filters, named } = this.#options;
    try {
      return await runPart(part, {
        root,
        reports: this.#out,
        filters,
        deadlineMs,
        env: {
          ...process.env,
          CLOCHE_TEST_HOMES: this.#homes,
          CLOCHE_TEST_LOG: this.#logs,
          CLOCHE_CACHE: process.env["CLOCHE_CACHE"] || "/var/tmp/cloche-cache",
        },
        print: named ? (line) => console.log(`${part.name.padEnd(9)} | ${line}`) : undefined,
        clear: () => this.#clear(),
      });
    } catch (error) {
      return failed(part, (error as Error).message);
    }
  }

  /** Homes that a part did not destroy itself, and what their services still had on the machine. */
  #clear(): string[] {
    return readdirSync(this.#homes)
      .filter((name) => name !== OUT)
      .flatMap((name) => clearHome(join(this.#homes, name)));
  }

  #printLogs(): void {
    for (const name of readdirSync(this.#logs))
      console.log(`--- ${name}\n${readFileSync(join(this.#logs, name), "utf8")}`);
    const left = leftLogs(this.#homes);
    if (left !== "") console.log(left);
  }
}

export const failed = (part: Part, why: string): Counts => ({
  ...noCounts(),
  failed: 1,
  failures: [`${part.name}: ${why}`],
});
