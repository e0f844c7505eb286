import { setTimeout as sleep } from "node:timers/promises";
import { humanBytes, type MetricsSample, type Sandbox } from "@cloche/sdk";
import { positiveNumber } from "../options.ts";
import { megabytes } from "../sandbox-format.ts";
import { printJson, printTable, write } from "../terminal.ts";
import { act, type Registry, type Run } from "../register.ts";

/** Calls at once. */
const askedAtOnce = 8;
const defaultSeconds = 2;
const toBegin = "\x1b[H\x1b[J";

interface Row {
  sandbox: Sandbox;
  now: MetricsSample;
}

/** top: what the running sandboxes use. */
export function addTopCommand(registry: Registry): void {
  registry.program
    .command("top")
    .description("what the running sandboxes use now, the busiest first; on a terminal again and again")
    .option("--once", "print it once, as without a terminal")
    .option(
      "-s, --seconds <number>",
      `time between two looks; default ${defaultSeconds}`,
      positiveNumber,
      defaultSeconds,
    )
    .addHelpText("after", "\nExamples:\n  cloche top\n  cloche top --once")
    .action(
      act(registry, async (run, options: { once?: boolean; seconds: number }) => {
        const isRepeated = run.terminal.stdout.isTTY === true && options.once !== true && !run.json;
        for (;;) {
          const rows = await readRows(run);
          if (isRepeated) await write(run.terminal.stdout, toBegin);
          await show(run, rows);
          if (!isRepeated) return;
          await sleep(options.seconds * 1_000, undefined, { signal: run.signal });
        }
      }),
    );
}

async function readRows(run: Run): Promise<Row[]> {
  const { signal } = run;
  const waiting: Sandbox[] = [];
  for await (const sandbox of run.cloche.list({ states: ["SANDBOX_STATE_RUNNING"] }, { signal }))
    waiting.push(sandbox);
  const rows: Row[] = [];
  const work = async (): Promise<void> => {
    for (let sandbox = waiting.pop(); sandbox !== undefined; sandbox = waiting.pop()) {
      // It may be suspended or deleted meanwhile.
      const metrics = await sandbox.metrics({ signal }).catch(() => undefined);
      if (metrics !== undefined) rows.push({ sandbox, now: metrics.now });
    }
  };
  await Promise.all(Array.from({ length: askedAtOnce }, work));
  signal.throwIfAborted();
  const cpusOf = ({ sandbox, now }: Row): number => now.cpu_share * sandbox.info.cpus;
  return rows.toSorted((a, b) => cpusOf(b) - cpusOf(a) || b.now.memory_bytes - a.now.memory_bytes);
}

async function show({ json, terminal }: Run, rows: readonly Row[]): Promise<void> {
  if (json)
    return printJson(terminal, {
      sandboxes: rows.map(({ sandbox, now }) => ({ id: sandbox.id, name: sandbox.info.name, ...now })),
    });
  const cells = rows.map(({ sandbox, now }) => [
    sandbox.id,
    sandbox.info.name,
    `${(now.cpu_share * 100).toFixed(1)} % of ${sandbox.info.cpus}`,
    `${humanBytes(now.memory_bytes)} of ${megabytes(sandbox.info.memory_mb)}`,
    `${humanBytes(now.disk_bytes)} of ${megabytes(sandbox.info.disk_mb)}`,
    String(now.processes),
  ]);
  await printTable(terminal, ["ID", "NAME", "CPU", "MEMORY", "DISK", "PROCESSES"], cells);
}
