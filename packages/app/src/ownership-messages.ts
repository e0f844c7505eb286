/** Messages for an operator about a database or a store of another owner. */
import { type Owner, ownerAliveMs, ownerLives, rfc3339 } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import type { Place } from "./owned-place.ts";

export function descriptionOf(owner: Owner): string {
  const seen = owner.seenAtMs === 0 ? "stopped" : `last seen ${rfc3339(owner.seenAtMs)}`;
  return `installation ${owner.installation}, home ${owner.home} on host ${owner.host} (${seen})`;
}

export const isTheirs = (place: Place, owner: Owner): ClocheError =>
  new ClocheError(
    "failed_precondition",
    `${place.name} belongs to another installation: ${descriptionOf(owner)}. Two installations on one would destroy each other's ${lost(place)}: set ${place.setting} to another one. If that installation is gone, or its home was deleted and made anew, take it over: npx cloche take-over`,
  );

/** `mayForce`: the caller may add `--force`. */
export function inUse(place: Place, owner: Owner, nowMs: number, mayForce = false): ClocheError {
  const seconds = Math.max(1, Math.ceil((owner.seenAtMs + ownerAliveMs - nowMs) / 1_000));
  const wait = ownerLives(owner, nowMs) ? `; if it was killed, try again in ${seconds} s` : "";
  const force = mayForce ? ", or insist: --force" : "";
  return new ClocheError(
    "failed_precondition",
    `${place.name} is in use by ${descriptionOf(owner)}: stop that service first${wait}${force}`,
  );
}

export const quicker = (place: Place): ClocheError =>
  new ClocheError(
    "failed_precondition",
    `another service claims ${place.name} at this moment: see which of the two is to have it, and start again`,
  );

const lost = (place: Place): string => (place.setting === "CLOCHE_BLOB_URL" ? "checkpoints" : "sandboxes");
