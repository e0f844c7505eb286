import { isSandboxId } from "@cloche/protocol";
import type { SandboxUsage } from "@cloche/sdk";
import { InvalidArgumentError, Option } from "commander";
import { present, seconds } from "../options.ts";
import { printJson, printTable } from "../terminal.ts";
import { act, type Registry, type Run } from "../register.ts";

const groupings = ["sandbox", "name", "key"] as const;
interface UsageOptions {
  from?: string;
  to?: string;
  by: (typeof groupings)[number];
}

/** usage. */
export function addUsageCommand(registry: Registry): void {
  registry.program
    .command("usage [sandbox]")
    .description("for how long sandboxes were running, deleted ones included")
    .option("--from <time>", "RFC 3339, or how long ago: 90s, 2h, 7d; default from the beginning", timeOrAgo)
    .option("--to <time>", "RFC 3339, or how long ago; default now", timeOrAgo)
    .addOption(
      new Option("--by <what>", "sum up by: sandbox, name, or the API key that made them")
        .choices(groupings)
        .default("sandbox"),
    )
    .addHelpText(
      "after",
      "\nExamples:\n  cloche usage --from 7d\n  cloche usage --by key\n  cloche usage demo --from 2026-01-01T00:00:00Z --json",
    )
    .action(
      act(registry, async (run, nameOrId: string | undefined, options: UsageOptions) => {
        const { gateway } = run.cloche;
        // The id of one that is deleted finds no sandbox any more, but its usage.
        const sandboxId =
          nameOrId === undefined || isSandboxId(nameOrId) ? nameOrId : (await run.sandbox(nameOrId)).id;
        const request = present({ sandbox_id: sandboxId, from: options.from, to: options.to });
        const usage: SandboxUsage[] = [];
        let page = await gateway.getUsage(request, { signal: run.signal });
        for (;;) {
          usage.push(...page.usage);
          if (page.next_page_token === "") break;
          const next = { ...request, page_token: page.next_page_token };
          page = await gateway.getUsage(next, { signal: run.signal });
        }
        const { compute_seconds, from, to } = page;
        if (options.by !== "sandbox")
          return showSums(run, await summedUp(run, usage, options.by), compute_seconds);
        if (run.json) return printJson(run.terminal, { usage, compute_seconds, from, to });
        const rows = usage.map((one) => [
          one.sandbox_id,
          one.name ?? "",
          one.compute_seconds.toFixed(3),
          one.cpu_seconds.toFixed(3),
          one.first_ran_at,
          one.last_ran_at,
        ]);
        rows.push(["total", "", compute_seconds.toFixed(3)]);
        const columns = ["SANDBOX", "NAME", "SECONDS", "CPU SECONDS", "FIRST RAN", "LAST RAN"];
        return printTable(run.terminal, columns, rows);
      }),
    );
}

interface Sum {
  name: string;
  /** Only of keys. */
  key?: string;
  sandboxes: number;
  compute_seconds: number;
  cpu_seconds: number;
  memory_mb_seconds: number;
}

/** Sums by name, or by the key that made the sandboxes; the largest first. */
async function summedUp(run: Run, usage: readonly SandboxUsage[], by: "name" | "key"): Promise<Sum[]> {
  const keys = by === "key" ? await run.cloche.gateway.listApiKeys({ signal: run.signal }) : [];
  const names = new Map(keys.map(({ id, name }) => [id, name]));
  const sums = new Map<string, Sum>();
  for (const one of usage) {
    const of = (by === "key" ? one.created_by : one.name) || "unknown";
    const sum = sums.get(of) ?? {
      name: by === "key" ? (names.get(of) ?? "") : of,
      ...(by === "key" && { key: of }),
      sandboxes: 0,
      compute_seconds: 0,
      cpu_seconds: 0,
      memory_mb_seconds: 0,
    };
    sum.sandboxes += 1;
    for (const unit of ["compute_seconds", "cpu_seconds", "memory_mb_seconds"] as const)
      sum[unit] += one[unit];
    sums.set(of, sum);
  }
  return [...sums.values()].toSorted((a, b) => b.compute_seconds - a.compute_seconds);
}

async function showSums({ json, terminal }: Run, sums: Sum[], computeSeconds: number): Promise<void> {
  if (json) return printJson(terminal, { usage: sums, compute_seconds: computeSeconds });
  const hasKeys = sums.some(({ key }) => key !== undefined);
  const rows = sums.map((sum) => [
    ...(hasKeys ? [sum.key] : []),
    sum.name,
    String(sum.sandboxes),
    sum.compute_seconds.toFixed(3),
    sum.cpu_seconds.toFixed(3),
  ]);
  const columns = [...(hasKeys ? ["KEY"] : []), "NAME", "SANDBOXES", "SECONDS", "CPU SECONDS"];
  return printTable(terminal, columns, rows);
}

function timeOrAgo(text: string): string {
  if (/^\d+[smhd]?$/.test(text)) return new Date(Date.now() - seconds(text) * 1_000).toISOString();
  if (!/^\d{4}-\d\d-\d\dT/.test(text) || Number.isNaN(Date.parse(text))) {
    throw new InvalidArgumentError(
      "it must be a time like 2026-01-31T00:00:00Z, or how long ago, like 90s, 2h or 7d",
    );
  }
  return text;
}
