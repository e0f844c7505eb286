import type { AuditEntry } from "@cloche/sdk";
import { present, wholeNumber } from "../options.ts";
import { printJson, printTable } from "../terminal.ts";
import { act, type Registry } from "../register.ts";

const defaultPageSize = 1_000;

/** audit. */
export function addAuditCommand(registry: Registry): void {
  registry.program
    .command("audit [subject]")
    .description(
      "what was done, by whom and with which result, newest first; of a sandbox, checkpoint or key",
    )
    .option("-n, --limit <number>", "entries at most; default 100", wholeNumber, 100)
    .addHelpText(
      "after",
      "\nExamples:\n  cloche audit\n  cloche audit demo -n 20\n  cloche audit key-… --json",
    )
    .action(
      act(registry, async (run, nameOrId: string | undefined, { limit }: { limit: number }) => {
        // The id of a deleted sandbox, checkpoint or key finds only its entries.
        const isId = nameOrId !== undefined && /^(sbx|ckpt|key)-[a-z0-9]{20}$/.test(nameOrId);
        const subject = nameOrId === undefined || isId ? nameOrId : (await run.sandbox(nameOrId)).id;
        const entries: AuditEntry[] = [];
        let pageToken: string | undefined;
        while (entries.length < limit && pageToken !== "") {
          const pageSize = Math.min(limit - entries.length, defaultPageSize);
          const request = present({ subject, page_size: pageSize, page_token: pageToken });
          const page = await run.cloche.gateway.listAuditEntries(request, { signal: run.signal });
          entries.push(...page.entries);
          pageToken = page.next_page_token;
        }
        if (run.json) return printJson(run.terminal, { entries });
        const rows = entries.map((one) => [
          one.at,
          one.actor,
          one.action,
          one.subject,
          one.result,
          one.detail,
        ]);
        return printTable(run.terminal, ["AT", "WHO", "WHAT", "SUBJECT", "RESULT", "DETAIL"], rows);
      }),
    );
}
