/**
 * Whose a database or a store of checkpoints is. Two services that do not know of each other would destroy each other's sandboxes and
 * checkpoints, so each place carries the installation that owns it and the service that uses it now:
 *
 *   no owner ──claim──▶ ours, in use ──stop──▶ ours, not in use ──claim──▶ …
 *                            └──somebody takes it over──▶ another's: the service that used it ends
 *
 * The owner is an installation, not a host: the services of one installation will share its places. Today one at a time does.
 */

/** A service that lives says so this often, and learns in the same time that it was replaced. */
export const ownerSeenEveryMs = 60_000;
/** Without a word for so long, a service is taken for dead. Three words may be late or lost. */
export const ownerAliveMs = 180_000;

export interface Owner {
  /** Id of the installation: `ins-` and 20 characters. Lies in its home, and in its backups. */
  installation: string;
  /** The service that uses it: home, host's name, and an id of the machine where it has one. */
  home: string;
  host: string;
  machine: string;
  /** A new one at each start: `run-` and 20 characters. */
  session: string;
  /** Unix milliseconds. */
  claimedAtMs: number;
  /** When that service last said that it lives; 0: it was stopped. */
  seenAtMs: number;
}

/** A place that has an owner. Both are covered by tests/contracts/owner.test.ts. */
export interface OwnedPlace {
  owner(): Promise<Owner | undefined>;
  /** Compare-and-set on the session: puts `next` in place of `found`. False: somebody else was quicker. */
  replaceOwner(found: Owner | undefined, next: Owner): Promise<boolean>;
  /** Notes that the service of this session lives (0: it stops). False: the place is no longer its own. */
  ownerSeen(session: string, nowMs: number): Promise<boolean>;
  /** Takes a claim back, where it is still that session's. */
  removeOwner(session: string): Promise<void>;
}

/**
 * `free`: nobody's. `ours`: of this installation, and nobody uses it. `in use`: of this installation, and a service elsewhere uses it.
 * `theirs`: another installation's.
 */
export type OwnerVerdict = "free" | "ours" | "in use" | "theirs";

export function ownerVerdict(
  found: Owner | undefined,
  me: Pick<Owner, "installation" | "home" | "machine">,
  nowMs: number,
): OwnerVerdict {
  if (found === undefined) return "free";
  if (found.installation !== me.installation) return "theirs";
  // Of one home one service runs at a time (the control socket): this one was killed.
  const isThisPlace = found.home === me.home && found.machine === me.machine;
  return !isThisPlace && ownerLives(found, nowMs) ? "in use" : "ours";
}

/** Whether its service was heard of within `ownerAliveMs`. Clocks of two hosts may differ, so the future counts too. */
export const ownerLives = (owner: Owner, nowMs: number): boolean =>
  owner.seenAtMs !== 0 && Math.abs(nowMs - owner.seenAtMs) < ownerAliveMs;
