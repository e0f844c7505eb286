/**
 * The phases of a machine in one table: which trigger leads from which phase to which. Only `Machines.move` uses it.
 *
 *               start                          suspend           suspended
 *     stopped ─────────▶ starting ─started─▶ running ──▶ suspending ──────▶ suspended
 *      ▲  ▲                 │                │ ▲  ▲          │                 │ resume
 *      │  └── start_failed ─┘                │ │  └──────────┘ suspend_failed  ▼
 *      └────────────── ended ───────────────┘ └───────────── started ─────── resuming ─resume_failed─▶ suspended
 *
 *     starting ──imported──▶ suspended
 *     any ──gave_up──▶ failed ──resume_failed──▶ suspended          any ──destroy──▶ destroying ──▶ (no record)
 *
 * Steps of a saga are repeated after a crash, so each trigger is also allowed in the phase that it leads to. An undo may begin
 * after the commit, so each `…_failed` is also allowed in the phase where its operation ends.
 */
export const machinePhases = [
  "starting",
  "running",
  "suspending",
  "suspended",
  "resuming",
  "stopped",
  "failed",
  "destroying",
] as const;
export type MachinePhaseName = (typeof machinePhases)[number];

export type PhaseTrigger =
  /** A cold start from the disk begins, or is undone. */
  | "start"
  | "start_failed"
  /** Create, cold start, fork or resume is committed. */
  | "started"
  | "suspend"
  | "suspend_failed"
  | "suspended"
  | "resume"
  | "resume_failed"
  /** The machine was imported from an image in storage. */
  | "imported"
  /** A start of the service found its processes alive. */
  | "adopted"
  /** Its processes and memory are gone: the next start is cold, from its disk. */
  | "ended"
  /** The machine is not started again by itself. */
  | "gave_up"
  | "destroy";

type Row = Partial<Record<PhaseTrigger, MachinePhaseName>>;

const anywhere: Row = { gave_up: "failed", destroy: "destroying" };

export const phaseTable: Readonly<Record<MachinePhaseName, Row>> = {
  starting: {
    ...anywhere,
    start: "starting",
    started: "running",
    start_failed: "stopped",
    imported: "suspended",
    ended: "stopped",
  },
  running: {
    ...anywhere,
    started: "running",
    start_failed: "stopped",
    suspend: "suspending",
    suspend_failed: "running",
    resume_failed: "suspended",
    adopted: "running",
    ended: "stopped",
  },
  suspending: {
    ...anywhere,
    suspend: "suspending",
    suspend_failed: "running",
    suspended: "suspended",
    adopted: "running",
    ended: "stopped",
  },
  suspended: {
    ...anywhere,
    suspended: "suspended",
    imported: "suspended",
    suspend_failed: "running",
    resume: "resuming",
    resume_failed: "suspended",
    ended: "stopped",
  },
  resuming: { ...anywhere, resume: "resuming", started: "running", resume_failed: "suspended" },
  stopped: { ...anywhere, start: "starting", start_failed: "stopped", ended: "stopped" },
  // A resume that could not be undone is undone by the next start.
  failed: { ...anywhere, resume_failed: "suspended" },
  destroying: anywhere,
};

/** Throws if the table does not allow it, which is a bug and not a wrong request. */
export function nextPhase(from: MachinePhaseName, trigger: PhaseTrigger): MachinePhaseName {
  const to = phaseTable[from][trigger];
  if (to === undefined) throw new Error(`the table of phases has no ${trigger} from ${from}`);
  return to;
}
