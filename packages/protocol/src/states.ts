/**
 * The sandbox lifecycle as one table: which operation may move a sandbox from where to where.
 *
 *                 create / fork
 *                      │
 *                  CREATING ──────────────┐
 *                      │ ok               │ failed for good
 *      suspend failed  ▼                  ▼
 *     ┌──────────▶ RUNNING ───────────▶ ERROR
 *     │                │ suspend  crash   ▲
 * SUSPENDING ◀─────────┘                  │
 *     │ image durable                     │
 *     ▼                                   │
 * SUSPENDED ──resume──▶ RESUMING ─────────┤ failed for good
 *     ▲                   │ │ ok          │
 *     └── passing reason ─┘ └─▶ RUNNING   │
 *                                         │
 * any ──delete──▶ DELETING ──▶ (gone)   ◀─┘ delete
 *
 * In a cluster: ERROR only because its host was lost ──the host is back with its machine──▶ RUNNING
 */
export const sandboxStates = [
  "SANDBOX_STATE_CREATING",
  "SANDBOX_STATE_RUNNING",
  "SANDBOX_STATE_SUSPENDING",
  "SANDBOX_STATE_SUSPENDED",
  "SANDBOX_STATE_RESUMING",
  "SANDBOX_STATE_DELETING",
  "SANDBOX_STATE_ERROR",
] as const;
/** The state of a sandbox. */
export type SandboxState = (typeof sandboxStates)[number];

export const transitionTriggers = [
  "created",
  "create_failed",
  "suspend",
  "suspended",
  "suspend_failed",
  "resume",
  "resumed",
  "resume_failed",
  "resume_failed_for_good",
  "crashed",
  "host_returned",
  "delete",
] as const;
export type TransitionTrigger = (typeof transitionTriggers)[number];

type Table = Record<SandboxState, Partial<Record<TransitionTrigger, SandboxState>>>;

export const transitions: Table = {
  SANDBOX_STATE_CREATING: {
    created: "SANDBOX_STATE_RUNNING",
    create_failed: "SANDBOX_STATE_ERROR",
    delete: "SANDBOX_STATE_DELETING",
  },
  SANDBOX_STATE_RUNNING: {
    suspend: "SANDBOX_STATE_SUSPENDING",
    crashed: "SANDBOX_STATE_ERROR",
    delete: "SANDBOX_STATE_DELETING",
  },
  SANDBOX_STATE_SUSPENDING: {
    suspended: "SANDBOX_STATE_SUSPENDED",
    suspend_failed: "SANDBOX_STATE_RUNNING",
    crashed: "SANDBOX_STATE_ERROR",
    delete: "SANDBOX_STATE_DELETING",
  },
  SANDBOX_STATE_SUSPENDED: {
    resume: "SANDBOX_STATE_RESUMING",
    delete: "SANDBOX_STATE_DELETING",
  },
  SANDBOX_STATE_RESUMING: {
    resumed: "SANDBOX_STATE_RUNNING",
    resume_failed: "SANDBOX_STATE_SUSPENDED",
    resume_failed_for_good: "SANDBOX_STATE_ERROR",
    delete: "SANDBOX_STATE_DELETING",
  },
  SANDBOX_STATE_DELETING: {},
  SANDBOX_STATE_ERROR: {
    host_returned: "SANDBOX_STATE_RUNNING",
    delete: "SANDBOX_STATE_DELETING",
  },
};

/** The state after `trigger`; undefined: not allowed in `state`. */
export function nextState(state: SandboxState, trigger: TransitionTrigger): SandboxState | undefined {
  return transitions[state][trigger];
}
