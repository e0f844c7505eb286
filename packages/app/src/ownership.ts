/**
 * Ensures that only this service uses its database and checkpoint storage. Reads the owner of both before it claims either, and before
 * anything on this machine is changed. A running service renews its claim every minute and ends when another service has taken over.
 * Storage that is not reachable at the start is claimed once it is; until then nothing is written to it.
 */
import { readFile } from "node:fs/promises";
import { hostname } from "node:os";
import { type Clock, type Log, type Owner, ownerSeenEveryMs, ownerVerdict } from "@cloche/base";
import { ClocheError, newSessionId, type RandomBytes } from "@cloche/protocol";
import { inUse, isTheirs, quicker, descriptionOf } from "./ownership-messages.ts";
import type { Place } from "./owned-place.ts";
import { ensureInstallation } from "./setup/installation.ts";

export interface OwnershipParts {
  home: string;
  /** Id of the cluster's installation; undefined on a single machine. All gateways are one owner, and each may claim at any time. */
  cluster?: string;
  database: Place;
  store: Place;
  /** Closes the store for writing, with a reason, or opens it (undefined): host/src/blob/guarded-store.ts. */
  guard(why: string | undefined): void;
  clock: Clock;
  log: Log;
  randomBytes: RandomBytes;
}

export class Ownership {
  readonly #parts: OwnershipParts;
  readonly #me: Owner;
  readonly #stopping = new AbortController();
  #hasStore = false;
  #watching: Promise<void> = Promise.resolve();

  private constructor(parts: OwnershipParts, me: Owner) {
    this.#parts = parts;
    this.#me = me;
  }

  /** Throws `failed_precondition`, with the owner and the remedy, if either has another owner; then neither is claimed. */
  static async claim(parts: OwnershipParts): Promise<Ownership> {
    const { database, store, clock } = parts;
    const me = await whoAmI(parts);
    const ownership = new Ownership(parts, me);
    const ofDatabase = await inspect(database, me, clock.nowMs());
    const ofStore = await inspect(store, me, clock.nowMs()).catch(outOfReach);
    if (!(await claimPlace(database, ofDatabase, me))) throw quicker(database);
    try {
      if (ofStore !== "out of reach") await ownership.#claimStore(ofStore);
    } catch (error) {
      // The error names the owner of the store; the database gets back the owner that was found.
      if (ofDatabase === undefined) await database.owned.removeOwner(me.session);
      else await database.owned.replaceOwner(me, ofDatabase);
      throw error;
    }
    return ownership;
  }

  /** `onLost` is called once, when another service has taken over. */
  watch(onLost: (why: string) => void): void {
    const { clock, log } = this.#parts;
    const { signal } = this.#stopping;
    this.#watching = (async () => {
      while (!signal.aborted) {
        await clock.sleep(ownerSeenEveryMs, signal).catch(() => undefined);
        if (signal.aborted) return;
        const lost = await this.#round().catch((error: unknown) => {
          log.warn({ err: error }, "ownership renewal failed");
        });
        if (lost === undefined) continue;
        this.#parts.guard(lost);
        return onLost(lost);
      }
    })();
  }

  /** Marks both as not in use; they still belong to this installation. */
  async release(): Promise<void> {
    this.#stopping.abort();
    await this.#watching;
    this.#parts.guard("the service is stopped");
    const { database, store, log, cluster } = this.#parts;
    // Other gateways still use them.
    if (cluster !== undefined) return;
    for (const { owned, name } of this.#hasStore ? [database, store] : [database]) {
      // A failure does no harm: the next start of this home, or three minutes without renewal, have the same effect.
      await owned.ownerSeen(this.#me.session, 0).catch((error: unknown) => {
        log.warn({ err: error }, `ownership release failed: ${name}`);
      });
    }
  }

  async #round(): Promise<string | undefined> {
    const { database, store, clock, log } = this.#parts;
    const { session } = this.#me;
    const nowMs = clock.nowMs();
    if (!(await database.owned.ownerSeen(session, nowMs))) return await lostTo(database);
    if (this.#hasStore) {
      const isOurs = await store.owned.ownerSeen(session, nowMs).catch(outOfReach);
      return isOurs === false ? await lostTo(store) : undefined;
    }
    const found = await inspect(store, this.#me, nowMs).catch((error: unknown) => {
      log.error({ err: error }, "checkpoint storage could not be claimed: checkpoints stay on the pool");
      if (error instanceof ClocheError && error.code === "failed_precondition")
        this.#parts.guard(error.message);
      return "not yet" as const;
    });
    if (found !== "not yet") await this.#claimStore(found);
    return undefined;
  }

  async #claimStore(found: Owner | undefined): Promise<void> {
    const { store, guard } = this.#parts;
    if (!(await claimPlace(store, found, this.#me))) throw quicker(store);
    this.#hasStore = true;
    guard(undefined);
  }
}

/**
 * Makes this home the owner of both, regardless of the former owner. Refuses while a service that uses them is alive, unless `force`.
 * Answers a line about each. If the replaced service still runs, it ends within a minute.
 */
export async function takeOver(parts: OwnershipParts, force: boolean): Promise<string[]> {
  const me = { ...(await whoAmI(parts)), seenAtMs: 0 };
  const nowMs = parts.clock.nowMs();
  const found: { place: Place; owner: Owner | undefined; isOurs: boolean }[] = [];
  for (const place of [parts.database, parts.store]) {
    const owner = await place.owned.owner();
    // The installation does not matter here; a service killed in this same home is no obstacle.
    const verdict = ownerVerdict(owner, { ...me, installation: owner?.installation ?? "" }, nowMs);
    if (owner !== undefined && verdict === "in use" && !force) throw inUse(place, owner, nowMs, true);
    found.push({ place, owner, isOurs: verdict === "ours" && owner?.installation === me.installation });
  }
  const lines: string[] = [];
  for (const { place, owner, isOurs } of found) {
    if (isOurs) lines.push(`${place.name} is this installation's already`);
    else if (await place.owned.replaceOwner(owner, me))
      lines.push(
        `${place.name} is this installation's now; before, ${owner ? descriptionOf(owner) : "nobody's"}`,
      );
    else throw quicker(place);
  }
  return lines;
}

/** False: another owner, not of this cluster, was quicker. */
async function claimPlace({ owned }: Place, found: Owner | undefined, me: Owner): Promise<boolean> {
  const isOurs = (owner: Owner | undefined): boolean => owner?.session === me.session;
  return isOurs(found) || (await owned.replaceOwner(found, me)) || isOurs(await owned.owner());
}

/** The present owner. Throws if this service may not claim the place. */
async function inspect(place: Place, me: Owner, nowMs: number): Promise<Owner | undefined> {
  const found = await place.owned.owner();
  const verdict = ownerVerdict(found, me, nowMs);
  if (found !== undefined && verdict === "theirs") throw isTheirs(place, found);
  if (found !== undefined && verdict === "in use") throw inUse(place, found, nowMs);
  return found;
}

async function lostTo(place: Place): Promise<string> {
  const owner = await place.owned.owner();
  return `${place.name} was taken over${owner === undefined ? "" : `: it is used by ${descriptionOf(owner)}`}`;
}

function outOfReach(error: unknown): "out of reach" {
  if (error instanceof ClocheError && error.code === "unavailable") return "out of reach";
  throw error;
}

async function whoAmI({ home, cluster, clock, randomBytes }: OwnershipParts): Promise<Owner> {
  const nowMs = clock.nowMs();
  if (cluster !== undefined) return ownerOfCluster(cluster, nowMs);
  return {
    installation: await ensureInstallation(home, randomBytes),
    home,
    host: hostname(),
    machine: await machineId(),
    session: newSessionId(randomBytes),
    claimedAtMs: nowMs,
    seenAtMs: nowMs,
  };
}

/** All gateways of a cluster write the same owner. */
const ownerOfCluster = (installation: string, nowMs: number): Owner => ({
  installation,
  home: "of a cluster",
  host: "its gateways",
  machine: "cluster",
  session: installation.replace(/^ins-/, "run-"),
  claimedAtMs: nowMs,
  seenAtMs: nowMs,
});

/** Containers often have no machine id: then the host name is used. */
async function machineId(): Promise<string> {
  const text = await readFile("/etc/machine-id", "utf8").catch(() => "");
  return text.trim() || hostname();
}
