/**
 * The owner of a database or a store of checkpoints. Two services that do not know of each other would destroy each
 * other's sandboxes and checkpoints, so each place names the installation that owns it and the service that uses it
 * now:
 *
 *   no owner ──claim──▶ ours, in use ──stop──▶ ours, not in use ──claim──▶ …
 *                            └──another takes it over──▶ another's: the service that used it ends
 *
 * The owner is an installation, not a host. One service uses a place at a time; all gateways of a cluster count as one.
 */

/** How often a service notes that it lives; it also learns then whether it was replaced. */
export const ownerSeenEveryMs = 60_000;
/** A service that has not noted that it lives for this long counts as dead. Three notes may be late or lost. */
export const ownerAliveMs = 180_000;

export interface Owner {
  /** Id of the installation: `ins-` and 20 characters. Stored in its home and in its backups. */
  installation: string;
  /** The service that uses the place: its home, the host's name, and the machine's id if there is one. */
  home: string;
  host: string;
  machine: string;
  /** New at each start: `run-` and 20 characters. */
  session: string;
  /** Unix milliseconds. */
  claimedAtMs: number;
  /** When that service last noted that it lives; 0: it was stopped. */
  seenAtMs: number;
}

/** A place that has an owner: a database or a store. Both are tested by tests/contracts/owner.test.ts. */
export interface OwnedPlace {
  owner(): Promise<Owner | undefined>;
  /** Compare-and-set on the session: replaces `found` by `next`. False: another service was first. */
  replaceOwner(found: Owner | undefined, next: Owner): Promise<boolean>;
  /** Notes that the service of this session lives (0: it stops). False: the place is no longer its own. */
  ownerSeen(session: string, nowMs: number): Promise<boolean>;
  /** Removes the claim, if it is still that session's. */
  removeOwner(session: string): Promise<void>;
}

/**
 * `free`: without an owner. `ours`: owned by this installation, and not in use. `in use`: owned by this installation,
 * and used by a service elsewhere. `theirs`: owned by another installation.
 */
export type OwnerVerdict = "free" | "ours" | "in use" | "theirs";

export function ownerVerdict(
  found: Owner | undefined,
  me: Pick<Owner, "installation" | "home" | "machine">,
  nowMs: number,
): OwnerVerdict {
  if (found === undefined) return "free";
  if (found.installation !== me.installation) return "theirs";
  // Only one service runs in a home at a time (the control socket): the one found was killed.
  const isThisPlace = found.home === me.home && found.machine === me.machine;
  return !isThisPlace && ownerLives(found, nowMs) ? "in use" : "ours";
}

/** Whether the service noted within `ownerAliveMs` that it lives. Clocks may differ, so future times count too. */
export const ownerLives = (owner: Owner, nowMs: number): boolean =>
  owner.seenAtMs !== 0 && Math.abs(nowMs - owner.seenAtMs) < ownerAliveMs;
