import { humanBytes, type SandboxInfo } from "@cloche/sdk";
import { findConnection, findLocalService } from "@cloche/sdk/node";
import { connectionOf, contextInUse } from "../contexts.ts";
import { megabytes, shortState } from "../sandbox-format.ts";
import { printFields, printJson } from "../terminal.ts";
import { type DiskPool, poolOfHome, poolOfMetrics } from "./disk-pool.ts";
import { hasCheckout, runService } from "./local-service.ts";
import { act, type Registry, type Run } from "../register.ts";

/** status. */
export function addStatusCommand(registry: Registry): void {
  const { program, terminal } = registry;
  program
    .command("status")
    .description(
      "where the service is, whether it answers, and what the team's sandboxes take; exit code 3: it does not run",
    )
    .option("--metrics <url>", "address of an operator's port (CLOCHE_METRICS_PORT): shows the disk pool too")
    .addHelpText(
      "after",
      "\nOf this machine's service, --json prints its addresses, without the counts.\n\nExample:\n  cloche status --json",
    )
    .action(async ({ metrics }: { metrics?: string }) => {
      const { env, signal } = terminal;
      const poolElsewhere = (): Promise<DiskPool | undefined> =>
        metrics === undefined ? Promise.resolve(undefined) : poolOfMetrics(metrics, signal);
      if (isElsewhere(env) || !hasCheckout())
        return act(registry, async (run) => ofService(run, await poolElsewhere()))();
      const runs = await runService(registry, ["status"]);
      // Of a part of a cluster, and of a service that another user runs, nothing can be counted here.
      const local = findLocalService(homeOf(env));
      if (runs && program.opts<{ json?: boolean }>().json !== true && local?.api_key !== undefined)
        await act(registry, async (run) =>
          printFields(
            run.terminal,
            fieldsOf(await countsOf(run), (await poolElsewhere()) ?? (await poolOfHome(homeOf(env)))),
          ),
        )();
    });
}

const homeOf = (env: NodeJS.ProcessEnv): string => env["CLOCHE_HOME"] || "/var/lib/cloche";

/** Whether the calls go to another service than this machine's. */
function isElsewhere(env: NodeJS.ProcessEnv): boolean {
  const url = contextInUse(env)?.context.url ?? (env["CLOCHE_URL"] || env["CLOCHE_GATEWAY_URL"]);
  return url !== undefined && url !== "" && url !== findLocalService(homeOf(env))?.gateway_url;
}

/** The status of any service, by its public calls. */
async function ofService(run: Run, pool: DiskPool | undefined): Promise<void> {
  const { env } = run.terminal;
  const inUse = contextInUse(env);
  const { gatewayUrl } = findConnection(env, inUse && connectionOf(inUse.context, env));
  const counts = await countsOf(run);
  if (run.json)
    return printJson(run.terminal, {
      gateway_url: gatewayUrl,
      context: inUse?.name,
      ready: true,
      ...counts,
      pool,
    });
  await printFields(run.terminal, [
    ["state", "ready"],
    ["gateway", gatewayUrl],
    ["context", inUse?.name],
    ...fieldsOf(counts, pool),
  ]);
}

interface Counts {
  sandboxes: Record<string, number>;
  /** Of those that run. */
  running: { cpus: number; memory_mb: number };
  /** The limits of all disks together. */
  disk_mb: number;
}

async function countsOf({ cloche, signal }: Run): Promise<Counts> {
  const counts: Counts = { sandboxes: {}, running: { cpus: 0, memory_mb: 0 }, disk_mb: 0 };
  for await (const { info } of cloche.list({}, { signal })) count(counts, info);
  return counts;
}

function count(counts: Counts, info: SandboxInfo): void {
  const state = shortState(info.state);
  counts.sandboxes[state] = (counts.sandboxes[state] ?? 0) + 1;
  counts.disk_mb += info.disk_mb;
  if (state !== "running") return;
  counts.running.cpus += info.cpus;
  counts.running.memory_mb += info.memory_mb;
}

function fieldsOf(counts: Counts, pool: DiskPool | undefined): [string, string | undefined][] {
  const states = Object.entries(counts.sandboxes).map(([state, number]) => `${number} ${state}`);
  return [
    ["sandboxes", states.join(", ") || "none"],
    ["memory", `${megabytes(counts.running.memory_mb)} and ${counts.running.cpus} cpus of those that run`],
    ["disks", `up to ${megabytes(counts.disk_mb)}`],
    ["pool", pool && `${humanBytes(pool.available_bytes)} free of ${humanBytes(pool.total_bytes)}`],
  ];
}
