/**
 * In a cluster an object in storage counts only when the database names it. A host has no database: it asks a gateway
 * (HostStorageService of registry.proto). On a single machine nobody else writes, and the manifests in storage are the names.
 *
 *   hold ──(upload)──▶ name ──▶ named ──drop──▶ garbage, which a sweep removes
 *     └ 24 h without another hold ──▶ swept
 */
import type { ListPosition } from "@cloche/protocol";
import type { CheckpointHeader, PackReference } from "./manifest.ts";

/** Of an object that is about to be written, or was. */
export interface Hold {
  /** The key of its manifest: `checkpoints/<id>`, or `images/<key>`. */
  name: string;
  /** Packs of others that it is going to name too: none of them is swept from now on. */
  inherited: readonly PackReference[];
  /** Its own, as far as they are written. */
  own?: readonly PackReference[];
}

export interface NamedCheckpoint {
  header: CheckpointHeader;
  packs: PackReference[];
}

export interface CheckpointNames {
  /** Throws failed_precondition where one of `inherited` is named by nobody any more. Repeatable: it is held a day longer. */
  hold(hold: Hold): Promise<void>;
  /** An upload came to nothing; what is named stays. Repeatable. */
  release(name: string): Promise<void>;
  /** The checkpoint is whole in storage; it was held before. From now on every host finds it. Repeatable. */
  name(checkpoint: NamedCheckpoint): Promise<void>;
  /** Undefined: no such checkpoint of the team is named. */
  find(teamId: string, id: string): Promise<NamedCheckpoint | undefined>;
  /** Newest first, at most `limit` behind `after`. */
  list(
    teamId: string,
    sandboxId: string,
    page: { limit: number; after?: ListPosition | undefined },
  ): Promise<{ checkpoints: NamedCheckpoint[]; next: ListPosition | undefined }>;
  /** How many the team has, and the size of their disks together. */
  totals(teamId: string): Promise<{ count: number; bytes: number }>;
  /** It is found no more. Answers the bytes of packs that nobody else names. Repeatable. */
  drop(teamId: string, id: string): Promise<number>;
}

/** What a host that sweeps the store is told. */
export interface SweepWords {
  /** Undefined: another host sweeps. `garbage`: keys to be removed; one that ends in `/`: all below it. */
  claim(): Promise<{ garbage: string[]; isListDue: boolean } | undefined>;
  /** Of keys, at most `KEYS_AT_ONCE`, of objects that are more than a day old: those that nobody names. */
  unnamed(keys: readonly string[]): Promise<string[]>;
  swept(keys: readonly string[], isListed: boolean): Promise<void>;
}

export const KEYS_AT_ONCE = 1_000;
