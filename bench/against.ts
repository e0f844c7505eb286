/**
 * `npm run bench -- against <commit> [operation…] [--samples N] [--seed N]`: is this tree slower than a commit? Builds that commit beside
 * this tree and starts a service of each, with homes of their own. Then the same operations run on both by turns, in an order shuffled by
 * the seed, each alone and with an idle gap after it. Prints for each operation both medians and the ratio of this tree to the commit,
 * with a 95 % bootstrap interval. Everything that was started is ended.
 */
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import type { connect } from "@cloche/sdk/node";
import { repositoryRoot, TestService } from "../tests/fixtures/service.ts";
import { clientOf } from "./client.ts";
import { percentile, percentileRatio, seeded, shuffled } from "./statistics.ts";
import { type Sandbox, suspended, timed } from "./shared.ts";

const run = promisify(execFile);
type Client = ReturnType<typeof connect>;

interface Side {
  name: string;
  service: TestService;
  cloche: Client;
  /** One sandbox for the operations that need one. */
  sandbox: Sandbox;
  samples: Map<string, number[]>;
}

/** After each operation: what it left to do must not slow the next. */
const gapMs = 400;
/** Restored memory has age (docs/internals/ready-machines.md): both templates are past it. */
const templateAgeMs = 150_000;
const burst = 50;
const burstSamples = 4;

type Record = (row: string, tookMs: number) => void;

const firstAndSecond = async (what: string, begun: number, sandbox: Sandbox, record: Record) => {
  const first = await timed(() => sandbox.exec(["true"]));
  record(`first exec after ${what}`, first);
  record(`${what} to first exec`, performance.now() - begun);
  record(`second exec after ${what}`, await timed(() => sandbox.exec(["true"])));
};

/** Each records the rows of one sample. */
const operations: { [name: string]: (side: Side, record: Record) => Promise<void> } = {
  async exec({ sandbox }, record) {
    record("exec", await timed(() => sandbox.exec(["true"])));
  },
  async create({ cloche }, record) {
    const begun = performance.now();
    const made = await cloche.create({});
    await firstAndSecond("create", begun, made, record);
    await made.delete();
  },
  async fork({ sandbox }, record) {
    const begun = performance.now();
    const made = await sandbox.fork();
    await firstAndSecond("fork", begun, made, record);
    await made.delete();
  },
  async checkpoint({ sandbox }, record) {
    let id = "";
    record(
      "checkpoint",
      await timed(async () => {
        id = (await sandbox.checkpoints.create()).checkpoint_id;
      }),
    );
    await sleep(gapMs);
    record("restore", await timed(() => sandbox.restore(id)));
    await sandbox.exec(["true"]);
    await sandbox.checkpoints.delete(id);
  },
  async suspend({ sandbox }, record) {
    record("suspend", await timed(() => suspended(sandbox)));
    await sleep(gapMs);
    const begun = performance.now();
    await sandbox.resume();
    await firstAndSecond("resume", begun, sandbox, record);
  },
  async store({ sandbox }, record) {
    record("store set", await timed(() => sandbox.store.set("bench", { at: 1 })));
  },
  async write({ sandbox }, record) {
    const mebibyte = Buffer.alloc(1_048_576, 7);
    record("write of 1 MiB", await timed(() => sandbox.files.write("/root/bench", mebibyte)));
  },
};

/** Not among the default ones' turns: fewer samples, at the end. */
async function createBurst({ cloche }: Side, record: Record): Promise<void> {
  const begun = performance.now();
  const made = await Promise.all(
    Array.from({ length: burst }, async () => {
      const one = await cloche.create({});
      await one.exec(["true"]);
      return one;
    }),
  );
  record(`burst of ${burst} creates`, performance.now() - begun);
  await Promise.all(made.map((one) => one.delete()));
}

export async function against(words: readonly string[], samples: number, seed: number): Promise<void> {
  const [commit = "", ...wanted] = words;
  const known = [...Object.keys(operations), "burst"];
  const unknown = wanted.filter((word) => !known.includes(word));
  if (commit === "" || unknown.length > 0)
    throw new Error(
      `against <commit> [${known.join(" | ")}…]; not known: ${unknown.join(", ") || "no commit"}`,
    );
  const chosen = wanted.length === 0 ? known : wanted;
  const closers: (() => Promise<unknown>)[] = [];
  try {
    const folder = await checkoutOf(commit, closers);
    const sides: Side[] = [];
    for (const [name, checkout] of [
      ["this tree", repositoryRoot],
      [commit, folder],
    ] as const) {
      const service = await TestService.create({ CLOCHE_RUNTIME: "gvisor" });
      service.checkout = checkout;
      closers.push(() => service.destroy());
      await service.start();
      const cloche = await clientOf(service);
      closers.push(() => cloche.close());
      sides.push({ name, service, cloche, sandbox: await cloche.create({}), samples: new Map() });
    }
    console.log(`templates age for ${templateAgeMs / 1_000} s`);
    await sleep(templateAgeMs);
    const random = seeded(seed);
    const turns = chosen.filter((word) => word !== "burst");
    for (let sample = -1; sample < samples; sample += 1) {
      if (sample >= 0 && sample % 10 === 0) console.log(`${sample} of ${samples} rounds`);
      for (const name of shuffled(turns, random))
        for (const side of shuffled(sides, random)) {
          await operations[name]?.(side, recorder(side, sample < 0));
          await sleep(gapMs);
        }
    }
    if (chosen.includes("burst"))
      for (let sample = 0; sample < Math.min(samples, burstSamples); sample += 1)
        for (const side of shuffled(sides, random)) {
          await createBurst(side, recorder(side, false));
          await sleep(10 * gapMs);
        }
    print(sides as [Side, Side], seed);
  } finally {
    for (const close of closers.toReversed())
      await close().catch((error: unknown) => console.error("at the end:", error));
  }
}

/** A first round warms up and is not kept. */
const recorder =
  ({ samples }: Side, isWarmUp: boolean): Record =>
  (row, tookMs) => {
    if (!isWarmUp) samples.set(row, [...(samples.get(row) ?? []), tookMs]);
  };

function print([ours, theirs]: [Side, Side], seed: number): void {
  const row = (...cells: string[]): void =>
    console.log(
      `| ${cells[0]?.padEnd(30)} | ${cells
        .slice(1)
        .map((cell) => cell.padStart(14))
        .join(" | ")} |`,
    );
  row("p50, ms", theirs.name.slice(0, 14), ours.name, "ratio", "95 %", "samples");
  for (const [name, mine] of ours.samples) {
    const other = theirs.samples.get(name) ?? [];
    const { value, low, high } = percentileRatio(mine, other, { p: 50, seed });
    const interval = `${low.toFixed(2)} to ${high.toFixed(2)}`;
    const medians = [other, mine].map((one) => percentile(one, 50).toFixed(1));
    row(name, ...medians, `${value.toFixed(2)}×`, interval, String(mine.length));
  }
}

/** A worktree of the commit. Packages of the same lock file are copied from this tree; its own script installs what is missing. */
async function checkoutOf(commit: string, closers: (() => Promise<unknown>)[]): Promise<string> {
  const parent = "/var/tmp/cloche-against";
  await mkdir(parent, { recursive: true });
  const folder = await mkdtemp(join(parent, "tree-"));
  await run("git", ["worktree", "add", "--detach", "--force", folder, commit], { cwd: repositoryRoot });
  closers.push(() => run("git", ["worktree", "remove", "--force", folder], { cwd: repositoryRoot }));
  const lockOf = (tree: string): Promise<string> => readFile(join(tree, "package-lock.json"), "utf8");
  // Links of workspaces are relative, so those of the copy lead to the commit's packages.
  if ((await lockOf(folder)) === (await lockOf(repositoryRoot)))
    for (const name of ["node_modules", ".node"].filter((one) => existsSync(join(repositoryRoot, one))))
      await run("cp", ["-a", join(repositoryRoot, name), folder]);
  await run("sh", ["scripts/node.sh", "--version"], { cwd: folder });
  return folder;
}
