import { humanBytes, type MetricsSample } from "@cloche/sdk";
import { printFields, printJson, printTable } from "../terminal.ts";
import { act, type Registry } from "../register.ts";

const percent = (share: number): string => `${(share * 100).toFixed(1)} %`;

const columns = ["AT", "CPU", "MEMORY", "DISK", "RECEIVED", "SENT", "PROCESSES"];
const cells = (one: MetricsSample): string[] => [
  one.at,
  percent(one.cpu_share),
  humanBytes(one.memory_bytes),
  humanBytes(one.disk_bytes),
  humanBytes(one.network_received_bytes),
  humanBytes(one.network_sent_bytes),
  String(one.processes),
];

/** metrics: what a sandbox uses. */
export function addMetricsCommand(registry: Registry): void {
  registry.program
    .command("metrics <sandbox>")
    .description("what a sandbox uses: share of its cpus, memory, disk, network, processes; wakes nothing")
    .option("--history", "each ten seconds of the last hour, oldest first")
    .addHelpText("after", "\nExamples:\n  cloche metrics demo\n  cloche metrics demo --history")
    .action(
      act(registry, async (run, nameOrId: string, options: { history?: boolean }) => {
        const sandbox = await run.sandbox(nameOrId);
        const metrics = await sandbox.metrics({ signal: run.signal });
        if (run.json) return printJson(run.terminal, metrics);
        if (options.history === true) return printTable(run.terminal, columns, metrics.history.map(cells));
        const named = cells(metrics.now).map((cell, index): [string, string] => [
          columns[index]?.toLowerCase() ?? "",
          cell,
        ]);
        return printFields(run.terminal, named);
      }),
    );
}
