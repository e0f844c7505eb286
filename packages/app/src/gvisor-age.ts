/** How old the gVisor is that sandboxes run on, for the banner and `cloche status`: a year without its fixes is too long. */

/** Of the status file. */
export interface GvisorStatus {
  /** As `runsc --version` says. */
  version: string;
  /** Day of the release, `2026-09-05`. */
  released?: string;
}

const dayMs = 24 * 3_600_000;
const tooOldMonths = 12;

export interface GvisorAge {
  /** Whole days since the release; undefined: the version names no day. */
  age_days?: number;
  /** What to do; undefined: it is young enough. */
  warning?: string;
}

export function gvisorAge({ version, released }: GvisorStatus, nowMs: number): GvisorAge {
  if (released === undefined) return {};
  const day = new Date(`${released}T00:00:00Z`);
  const age_days = Math.max(0, Math.floor((nowMs - day.getTime()) / dayMs));
  const tooOld = new Date(day);
  tooOld.setUTCMonth(tooOld.getUTCMonth() + tooOldMonths);
  if (nowMs <= tooOld.getTime()) return { age_days };
  const warning = `gVisor ${version} is older than ${tooOldMonths} months and lacks the security fixes since: see docs/operations.md, gVisor`;
  return { age_days, warning };
}

/** `20260905.0 (2026-09-05, 81 days old)`. */
export function gvisorText(gvisor: GvisorStatus, nowMs: number): string {
  const { age_days: days } = gvisorAge(gvisor, nowMs);
  if (days === undefined) return gvisor.version;
  return `${gvisor.version} (${gvisor.released}, ${days} ${days === 1 ? "day" : "days"} old)`;
}
