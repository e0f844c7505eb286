/**
 * The checkpoint storage of a host in a cluster. It belongs to the cluster, as a marker in it says that the gateways have put there; what a host
 * would write into another would be lost to the cluster, and a sweep would remove what is another's.
 *
 *   marker of this cluster ──▶ open        another's, or none ──▶ the start is refused
 *   storage away ──▶ shut for writing, looked at every minute ──▶ open, or shut for good
 */
import { type Clock, type Log, ownerSeenEveryMs } from "@cloche/base";
import type { GuardedStore } from "@cloche/host";
import { ClocheError } from "@cloche/protocol";
import type { Place } from "../owned-place.ts";
import { descriptionOf } from "../ownership-messages.ts";

export interface SharedStoreNeeds {
  /** Shut; opened when it is known to be the cluster's. */
  blobs: Pick<GuardedStore, "guard">;
  place: Place;
  /** What a gateway says; undefined: it is of a release that does not say. */
  installation: { id: string; storage: string } | undefined;
  clock: Pick<Clock, "sleep">;
  log: Log;
  /** Ends the looks at a storage that was away. */
  signal: AbortSignal;
}

/** Throws `failed_precondition`, naming the setting, where the storage is not this cluster's. */
export async function checkSharedStore(needs: SharedStoreNeeds): Promise<void> {
  if (await isChecked(needs)) return;
  void checkAgain(needs).catch(() => undefined);
}

/** False: the storage is away. */
async function isChecked({ blobs, place, installation, log }: SharedStoreNeeds): Promise<boolean> {
  if (installation !== undefined) {
    try {
      const owner = await place.owned.owner();
      if (owner?.installation !== installation.id) {
        const whose = owner
          ? `belongs to another installation: ${descriptionOf(owner)}`
          : "belongs to no cluster";
        throw new ClocheError(
          "failed_precondition",
          `${place.name} ${whose}. Set ${place.setting} to the storage of this host's cluster (${installation.id}): ` +
            `its gateways use ${installation.storage}`,
        );
      }
    } catch (error) {
      if (!(error instanceof ClocheError) || error.code !== "unavailable") throw error;
      log.error(
        { err: error },
        "it is not known whose the checkpoint storage is: nothing is written to it yet",
      );
      return false;
    }
  }
  blobs.guard(undefined);
  return true;
}

async function checkAgain(needs: SharedStoreNeeds): Promise<void> {
  const { blobs, clock, log, signal } = needs;
  for (;;) {
    await clock.sleep(ownerSeenEveryMs, signal);
    try {
      if (await isChecked(needs)) return;
    } catch (error) {
      log.error({ err: error }, "the checkpoint storage is not this cluster's: nothing is written to it");
      blobs.guard((error as Error).message);
      return;
    }
  }
}
