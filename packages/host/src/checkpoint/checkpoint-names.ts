/**
 * Names of objects in storage. In a cluster an object counts only if the database names it. Hosts have no database: they ask a
 * gateway (HostStorageService of registry.proto). On a single machine only this host writes, and the manifests are the names.
 *
 *   hold ──(upload)──▶ name ──▶ named ──drop──▶ garbage, which a sweep removes
 *     └ 24 h without another hold ──▶ swept
 */
import type { ListPosition } from "@cloche/protocol";
import type { CheckpointHeader, PackReference } from "./manifest.ts";

/** Protects an object that is being written, or was written, from sweeps. */
export interface Hold {
  /** The key of its manifest: `checkpoints/<id>`, or `images/<key>`. */
  name: string;
  /** Packs of other objects that this one will name too. None of them is swept from now on. */
  inherited: readonly PackReference[];
  /** Its own packs written so far. */
  own?: readonly PackReference[];
}

export interface NamedCheckpoint {
  header: CheckpointHeader;
  packs: PackReference[];
}

export interface CheckpointNames {
  /** Throws failed_precondition if one of `inherited` is no longer named. Repeatable: extends the hold by a day. */
  hold(hold: Hold): Promise<void>;
  /** Ends the hold of an upload that failed. A named object stays. Repeatable. */
  release(name: string): Promise<void>;
  /** Names a held checkpoint that is complete in storage. From now on every host finds it. Repeatable. */
  name(checkpoint: NamedCheckpoint): Promise<void>;
  /** Undefined: the team has no such named checkpoint. */
  find(teamId: string, id: string): Promise<NamedCheckpoint | undefined>;
  /** Newest first, at most `limit` after `after`. */
  list(
    teamId: string,
    sandboxId: string,
    page: { limit: number; after?: ListPosition | undefined },
  ): Promise<{ checkpoints: NamedCheckpoint[]; next: ListPosition | undefined }>;
  /** How many checkpoints the team has, and the total size of their disks. */
  totals(teamId: string): Promise<{ count: number; bytes: number }>;
  /** Removes the name. Answers the bytes of packs that no other object names. Repeatable. */
  drop(teamId: string, id: string): Promise<number>;
}

/** The gateway's part in a sweep of the store. */
export interface SweepCalls {
  /** Undefined: another host sweeps. `garbage`: keys to remove; a key that ends in `/` means all below it. */
  claim(): Promise<{ garbage: string[]; isListDue: boolean } | undefined>;
  /** `keys`: at most `keysAtOnce` keys of objects more than a day old. Answers those that are not named. */
  unnamed(keys: readonly string[]): Promise<string[]>;
  swept(keys: readonly string[], isListed: boolean): Promise<void>;
}

export const keysAtOnce = 1_000;
