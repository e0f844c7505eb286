/** How the command prints sandboxes. */
import { remedyOf } from "@cloche/protocol";
import type { SandboxInfo } from "@cloche/sdk";
import type { Run } from "./register.ts";
import { ageOf, endOf, shortState, sizeOf, withShortStates } from "./sandbox-format.ts";
import { printFields, printJson, printTable, type Terminal } from "./terminal.ts";

/** Characters of a reason that a row of a list shows. */
const reasonChars = 60;

async function printSandbox(terminal: Terminal, info: SandboxInfo): Promise<void> {
  const pairs = Object.entries(info.metadata ?? {}).map(([key, value]) => `${key}=${value}`);
  const { egress } = info;
  await printFields(terminal, [
    ["id", info.id],
    ["name", info.name],
    ["state", shortState(info.state)],
    [info.state === "SANDBOX_STATE_ERROR" ? "error" : "note", withShortStates(info.error_message ?? "")],
    ["next", nextStep(info)],
    ["domain", info.domain],
    ["created", `${info.created_at} (${ageOf(info)} ago)`],
    ["runtime", info.runtime],
    ["size", `${info.cpus} cpus, ${info.memory_mb} MB memory, ${info.disk_mb} MB disk`],
    ["host", info.host_id],
    ["forked from", info.source_sandbox_id],
    ["expires", info.expires_at ? `${info.expires_at} (${endOf(info)})` : ""],
    ["durable", info.durable ? "yes" : ""],
    ["on host loss", info.on_host_loss === "restart_from_checkpoint" ? info.on_host_loss : ""],
    ["checkpoint every", info.checkpoint_every_seconds > 0 ? `${info.checkpoint_every_seconds} s` : ""],
    ["metadata", pairs.join(" ")],
    ["egress", egress === undefined ? "" : [egress.mode, ...egress.domains, ...egress.cidrs].join(" ")],
    ["public ports", (info.public_ports ?? []).join(" ")],
  ]);
}

/** What helps a sandbox that is at rest and does not run; empty: nothing is needed. */
const nextStep = ({ state, id }: SandboxInfo): string =>
  state === "SANDBOX_STATE_SUSPENDED" || state === "SANDBOX_STATE_ERROR"
    ? remedyOf(state, id).replaceAll(/\w+Sandbox, or /g, "")
    : "";

export async function showSandbox({ json, terminal }: Run, info: SandboxInfo): Promise<void> {
  if (json) await printJson(terminal, info);
  else await printSandbox(terminal, info);
}

/** A table of sandboxes; `isWide`: with hosts, times and domains, and with whole reasons. */
export async function showSandboxes(
  { json, terminal }: Run,
  infos: readonly SandboxInfo[],
  isWide = false,
): Promise<void> {
  if (json) return printJson(terminal, { sandboxes: infos });
  const reasonOf = (info: SandboxInfo): string => {
    const reason = withShortStates(info.error_message ?? "");
    return isWide || reason.length <= reasonChars ? reason : `${reason.slice(0, reasonChars - 1)}…`;
  };
  const rows = infos.map((info) => [
    info.id,
    info.name,
    shortState(info.state),
    ageOf(info),
    sizeOf(info),
    endOf(info) || "never",
    ...(isWide ? [info.host_id || "-", info.runtime || "-", info.created_at, info.domain || "-"] : []),
    reasonOf(info),
  ]);
  const wide = isWide ? ["HOST", "RUNTIME", "CREATED", "DOMAIN"] : [];
  return printTable(terminal, ["ID", "NAME", "STATE", "AGE", "SIZE", "EXPIRES", ...wide, "REASON"], rows);
}
