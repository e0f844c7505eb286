/** Words of the command for a sandbox's state, age, size and end. */
import { type SandboxState, sandboxStates } from "@cloche/protocol";
import type { SandboxInfo } from "@cloche/sdk";
import { UsageError } from "./exit-codes.ts";

const prefix = "SANDBOX_STATE_";

/** `running` for SANDBOX_STATE_RUNNING. */
export const shortState = (state: string): string => state.replace(prefix, "").toLowerCase();

/** A text of the service with the command's words for states. */
export const withShortStates = (text: string): string =>
  text.replaceAll(/SANDBOX_STATE_[A-Z]+/g, (state) => shortState(state));

/** Reads `running`, `RUNNING` or `SANDBOX_STATE_RUNNING`. */
export function parseState(text: string): SandboxState {
  const upper = text.toUpperCase();
  const state = sandboxStates.find((one) => one === upper || one === `${prefix}${upper}`);
  if (state !== undefined) return state;
  throw new UsageError(`there is no state ${text}; use one of ${sandboxStates.map(shortState).join(", ")}`);
}

const units: [seconds: number, name: string][] = [
  [86_400, "d"],
  [3_600, "h"],
  [60, "m"],
  [1, "s"],
];

/** `3d`, `2h`, `5m`, `10s`: the largest unit of which there are at least two, so that 90 minutes are `90m`. */
export function duration(ms: number): string {
  const seconds = Math.max(0, Math.floor(ms / 1_000));
  const [size, name] = units.find(([unit]) => seconds >= 2 * unit) ?? [1, "s"];
  return `${Math.floor(seconds / size)}${name}`;
}

export const ageOf = (info: SandboxInfo, nowMs = Date.now()): string =>
  duration(nowMs - Date.parse(info.created_at));

/** `in 5m`, and what then happens unless it is deleted; empty: never. */
export function endOf({ expires_at: at, on_timeout: what }: SandboxInfo, nowMs = Date.now()): string {
  if (!at) return "";
  const leftMs = Date.parse(at) - nowMs;
  const when = leftMs > 0 ? `in ${duration(leftMs)}` : "now";
  return what === "suspend" ? `${when} (suspend)` : when;
}

/** Processors, memory and disk: `2c 1G 8G`. */
export const sizeOf = ({ cpus, memory_mb, disk_mb }: SandboxInfo): string =>
  `${cpus}c ${megabytes(memory_mb)} ${megabytes(disk_mb)}`;

/** `512M`, `1.5G`. */
export const megabytes = (mb: number): string =>
  mb < 1_024 ? `${mb}M` : `${Number((mb / 1_024).toFixed(1))}G`;
