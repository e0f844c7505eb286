/** `take-over`: makes this home the owner of database and checkpoint storage. For a home that was made again or moved. */
import { randomBytes } from "node:crypto";
import { type Config, ConfigError, silentLog, systemClock } from "@cloche/base";
import { pingControl } from "./control-socket.ts";
import { takeOver } from "./ownership.ts";
import { openPlaces } from "./places.ts";

export async function takeOverPlaces(config: Config, force: boolean): Promise<void> {
  const { home } = config;
  if (await pingControl(home))
    throw new ConfigError(
      `a service of ${home} is running, so both are its own; npm stop first to change that`,
    );
  const { database, databasePlace, storePlace } = await openPlaces(config);
  try {
    const lines = await takeOver(
      {
        home,
        database: databasePlace,
        store: storePlace,
        guard: () => undefined,
        clock: systemClock,
        log: silentLog,
        randomBytes,
      },
      force,
    );
    for (const line of lines) console.error(line);
  } finally {
    await database.close();
  }
}
