/**
 * The phases of a machine as one table: what may move it from where to where. `Machines.move` alone follows it.
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
 * Steps of a saga are repeated after a crash, and an undo begins where the last step left off, which may have been the commit:
 * so each trigger leads to its phase from that phase too, and each `…_failed` from where the operation ends.
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
  /** A cold start from the disk begins, or was undone. */
  | "start"
  | "start_failed"
  /** Create, cold start, fork or resume is committed. */
  | "started"
  | "suspend"
  | "suspend_failed"
  | "suspended"
  | "resume"
  | "resume_failed"
  /** It came out of an image in storage. */
  | "imported"
  /** A start of the service found its processes alive. */
  | "adopted"
  /** Its processes are gone, and its memory with them: it starts from its disk. */
  | "ended"
  /** Nothing starts it again. */
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

/** Throws where the table has no such way: that is a bug, not a request. */
export function nextPhase(from: MachinePhaseName, trigger: PhaseTrigger): MachinePhaseName {
  const to = phaseTable[from][trigger];
  if (to === undefined) throw new Error(`the table of phases has no ${trigger} from ${from}`);
  return to;
}
