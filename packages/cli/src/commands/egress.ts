import type { EgressRequest, SandboxEgress } from "@cloche/sdk";
import { UsageError } from "../exit-codes.ts";
import { printFields, printJson, printTable } from "../terminal.ts";
import { act, type Registry, type Run } from "../register.ts";

/** Reads a policy: `open`, `none`, or allowed names (`*.example.org:443`) and addresses (`203.0.113.0/24:80-90`) in any order. */
export function egressOf(destinations: readonly string[]): EgressRequest {
  const [first = ""] = destinations;
  if (destinations.length === 1 && (first === "open" || first === "none")) return { mode: first };
  if (destinations.includes("open") || destinations.includes("none"))
    throw new UsageError("open and none stand alone: they leave nothing to list");
  const isAddress = (destination: string): boolean => /^[\d.]+(\/|:|$)/.test(destination);
  return {
    mode: "allow",
    domains: destinations.filter((one) => !isAddress(one)),
    cidrs: destinations.filter(isAddress),
  };
}

/** egress. */
export function addEgressCommand(registry: Registry): void {
  registry.program
    .command("egress <sandbox> [allowed...]")
    .description("show what a sandbox may reach and what it was denied; or change it, at once")
    .addHelpText(
      "after",
      "\nExamples:\n  cloche egress demo\n  cloche egress demo none\n  cloche egress demo registry.npmjs.org:443 '*.github.com:443' 203.0.113.0/24",
    )
    .action(
      act(registry, async (run, nameOrId: string, allowed: string[]) => {
        const sandbox = await run.sandbox(nameOrId);
        if (allowed.length > 0) await sandbox.update({ egress: egressOf(allowed) }, { signal: run.signal });
        await show(run, await sandbox.egress({ signal: run.signal }));
      }),
    );
}

async function show({ json, terminal }: Run, answer: SandboxEgress): Promise<void> {
  if (json) return printJson(terminal, answer);
  const { egress } = answer;
  await printFields(terminal, [
    ["mode", egress.mode],
    ["domains", egress.domains.join(" ")],
    ["addresses", egress.cidrs.join(" ")],
    ["denied", `${answer.denied_packets} packets, ${answer.denied_names} names`],
  ]);
  if (answer.recent_denials.length === 0) return;
  const rows = answer.recent_denials.map(({ destination, protocol, port, count, last_at }) => [
    port === 0 ? destination : `${destination}:${port}`,
    protocol,
    String(count),
    last_at,
  ]);
  await printTable(terminal, ["DENIED", "PROTOCOL", "COUNT", "LAST"], rows);
}
