import type { SandboxUsage } from "@cloche/sdk";
import { InvalidArgumentError } from "commander";
import { present, seconds } from "../options.ts";
import { printJson, printTable } from "../terminal.ts";
import { act, type Registry } from "./register.ts";

interface UsageOptions {
  from?: string;
  to?: string;
}

/** usage. */
export function addUsageCommand(registry: Registry): void {
  registry.program
    .command("usage [sandbox]")
    .description("for how long sandboxes were running, deleted ones included")
    .option("--from <time>", "RFC 3339, or how long ago: 90s, 2h, 7d; default from the beginning", timeOrAgo)
    .option("--to <time>", "RFC 3339, or how long ago; default now", timeOrAgo)
    .addHelpText(
      "after",
      "\nExamples:\n  cloche usage --from 7d\n  cloche usage demo --from 2026-01-01T00:00:00Z --json",
    )
    .action(
      act(registry, async (run, word: string | undefined, options: UsageOptions) => {
        const { gateway } = run.cloche;
        // The id of one that is deleted finds no sandbox any more, but its usage.
        const sandboxId =
          word === undefined || /^sbx-[a-z0-9]{20}$/.test(word) ? word : (await run.sandbox(word)).id;
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
        if (run.json) return printJson(run.terminal, { usage, compute_seconds, from, to });
        const rows = usage.map((one) => [
          one.sandbox_id,
          one.compute_seconds.toFixed(3),
          one.cpu_seconds.toFixed(3),
          one.first_ran_at,
          one.last_ran_at,
        ]);
        rows.push(["total", compute_seconds.toFixed(3)]);
        return printTable(run.terminal, ["SANDBOX", "SECONDS", "CPU SECONDS", "FIRST RAN", "LAST RAN"], rows);
      }),
    );
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
