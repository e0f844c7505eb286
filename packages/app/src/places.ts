/** The database and the checkpoint storage of the settings, with their names for an operator. */
import { randomBytes } from "node:crypto";
import { join } from "node:path";
import { type Config, type Log, systemClock } from "@cloche/base";
import { type Database, openPostgres, openSqlite } from "@cloche/gateway";
import { GuardedStore, OwnerOfStore, openBlobStore } from "@cloche/host";
import type { Place } from "./owned-place.ts";
import { Ownership } from "./ownership.ts";
import type { Stops } from "./parts/stops.ts";

export interface Places {
  database: Database;
  blobs: GuardedStore;
  databasePlace: Place;
  storePlace: Place;
}

/** Opens both without claiming them. `isShared`: shared with the other gateways of a cluster. */
export async function openPlaces(config: Config, isShared = false): Promise<Places> {
  const file = join(config.home, "cloche.db");
  const database = config.databaseUrl
    ? await openPostgres(config.databaseUrl, systemClock, undefined, { isShared })
    : await openSqlite(file, systemClock);
  const blobs = await openBlobStore(config.blobUrl, config.home, process.env).catch(
    async (error: unknown) => {
      await database.close();
      throw error;
    },
  );
  return {
    database,
    blobs: new GuardedStore(blobs),
    databasePlace: {
      owned: database.ownership,
      name: `the database ${config.databaseUrl ? withoutSecrets(config.databaseUrl) : file}`,
      setting: "CLOCHE_DATABASE_URL",
    },
    // Not through the guard, which stays closed until the owner is known.
    storePlace: storePlaceOf(config, blobs),
  };
}

/** `cluster`: claims both for this installation, whose other gateways may claim them too. Answers when another has taken over. */
export async function claimPlaces(
  { home }: Config,
  { databasePlace, storePlace, blobs }: Places,
  stops: Stops,
  log: Log,
  cluster?: string,
): Promise<{ lost: Promise<string> }> {
  const ownership = await Ownership.claim({
    home,
    ...(cluster !== undefined && { cluster }),
    database: databasePlace,
    store: storePlace,
    guard: (why) => blobs.guard(why),
    clock: systemClock,
    log: log.child({ part: "ownership" }),
    randomBytes,
  });
  stops.add("ownership", () => ownership.release());
  const lost = Promise.withResolvers<string>();
  ownership.watch(lost.resolve);
  return { lost: lost.promise };
}

type BlobStore = Awaited<ReturnType<typeof openBlobStore>>;

export const storePlaceOf = (config: Config, blobs: BlobStore): Place => ({
  owned: new OwnerOfStore(blobs, systemClock),
  name: `the checkpoint storage ${config.blobUrl ? withoutSecrets(config.blobUrl) : join(config.home, "blobs")}`,
  setting: "CLOCHE_BLOB_URL",
});

/** A place as its setting names it, without what a query or credentials in it say. */
export function withoutSecrets(place: string): string {
  if (place.startsWith("/")) return place;
  const { protocol, host, pathname } = new URL(place);
  return `${protocol}//${host}${pathname}`;
}
