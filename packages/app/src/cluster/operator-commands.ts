/** Commands of a cluster's operator, on a computer with a gateway's settings: join tokens, list, cordon and drain of hosts. */
import { type Config, ConfigError, rfc3339, silentLog, systemClock } from "@cloche/base";
import { type Database, HostDirectory } from "@cloche/gateway";
import { printableJson } from "@cloche/protocol";
import { printTable } from "../print-table.ts";
import { openPlaces } from "../places.ts";
import { checkRole } from "./role-settings.ts";
import { membersIn, openCluster } from "./cluster-part.ts";

const hourMs = 3_600_000;
/** Pods without a disk join again after each replacement, so their token must live long. */
const yearHours = 8_760;
const joining = ["host", "edge"] as const;

async function withDatabase<T>(config: Config, work: (database: Database) => Promise<T>): Promise<T> {
  checkRole("gateway", config);
  const { database } = await openPlaces(config, true);
  try {
    return await work(database);
  } finally {
    await database.close();
  }
}

export interface JoinTokenOptions {
  isReusable: boolean;
  json: boolean;
  hours: number | undefined;
}

/** Prints only the token to standard output, and its use to standard error. `hours`: default 1, a year for a reusable token. */
export async function printJoinToken(
  config: Config,
  role: string,
  { isReusable, json, hours = isReusable ? yearHours : 1 }: JoinTokenOptions,
): Promise<void> {
  const known = joining.find((one) => one === role);
  if (known === undefined)
    throw new ConfigError(`${role} needs no join token: it is made for ${joining.join(" or ")}`);
  await withDatabase(config, async (database) => {
    const { tokens } = await openCluster(config, database);
    const nowMs = systemClock.nowMs();
    const until = rfc3339(nowMs + hours * hourMs);
    const token = tokens.issue(known, hours * hourMs, nowMs, isReusable);
    if (json) return console.log(JSON.stringify({ token, role, reusable: isReusable, expires_at: until }));
    console.log(token);
    console.error(
      isReusable
        ? `for any number of ${known}s until ${until}: keep it as you keep a password`
        : `for one ${known}, once, until ${until}`,
    );
  });
}

export async function printHosts(config: Config, json: boolean): Promise<void> {
  const hosts = await withDatabase(config, (database) => database.hosts.all());
  if (json) {
    const shown = hosts.map((host) => ({
      id: host.id,
      state: host.isLost ? "lost" : host.state,
      address: host.address,
      generation: host.generation,
      cpu_class: host.cpuClass,
      reserved_memory_mb: host.reservedMemoryMb,
      capacity_memory_mb: host.capacityMemoryMb,
      version: host.version,
    }));
    console.log(printableJson(JSON.stringify({ hosts: shown }, null, 2)));
    return;
  }
  const rows = hosts.map((host) => [
    host.id,
    host.isLost ? "lost" : host.state,
    host.address,
    `${host.reservedMemoryMb}/${host.capacityMemoryMb} MiB`,
    host.version,
  ]);
  printTable([["HOST", "STATE", "ADDRESS", "RESERVED", "VERSION"], ...rows]);
}

/** Lets another key join under the id. */
export async function forgetMember(config: Config, name: string): Promise<void> {
  const [role, id = ""] = name.split("/");
  const known = joining.find((one) => one === role);
  if (known === undefined)
    throw new ConfigError(`${name} is no part that joined: name one as host/<id> or edge/<id>`);
  const wasThere = await withDatabase(config, (database) =>
    membersIn(database.secrets).forget({ role: known, id }),
  );
  if (!wasThere) throw new ConfigError(`no ${known} has joined as ${JSON.stringify(id)}`);
  console.error(
    `another computer may join as ${known} ${id}; the certificate that is out is not renewed then`,
  );
}

const states = { cordon: "cordoned", uncordon: "open", drain: "draining" } as const;
const outcomes = {
  cordoned: "takes no new sandboxes; those it has stay",
  open: "takes sandboxes",
  draining: "takes no new sandboxes, and those it has move to other hosts",
};

export async function orderHost(config: Config, order: keyof typeof states, id: string): Promise<void> {
  const state = states[order];
  await withDatabase(config, async (database) => {
    await new HostDirectory(database.hosts, systemClock, silentLog).setState(id, state);
  });
  console.error(`host ${id} is ${state}: it ${outcomes[state]}`);
}
