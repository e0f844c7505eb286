// The PostgreSQL of a lab: on a node of its own, over TCP, as the postgres user. Its folder lies in the system's temporary folder, which
// that user can reach. What survives the script that started it: all of it, until `removeDatabase`.
import { chown, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { run } from "../../packages/base/src/commands/run.ts";
import { ensurePostgres } from "../fixtures/postgres.ts";

export interface LabDatabase {
  readonly url: string;
  /** Holds data and log. */
  readonly folder: string;
}

/** `on`: words before a command that make it run on the node. `mark`: an environment entry by which a sweep knows its processes. */
interface Place {
  readonly on: readonly string[];
  readonly address: string;
  readonly mark: Readonly<Record<string, string>>;
}

const NAME = "cloche";

export async function makeDatabase(place: Place): Promise<LabDatabase> {
  await ensurePostgres();
  const folder = await mkdtemp(join(tmpdir(), "cloche-lab-postgres-"));
  const [uid, gid] = await Promise.all(["-u", "-g"].map((flag) => run(["id", flag, "postgres"])));
  await chown(folder, Number(uid?.stdout), Number(gid?.stdout));
  const database = { folder, url: `postgres://postgres@${place.address}:5432/${NAME}` };
  const words = ["-D", join(folder, "data"), "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"];
  await asPostgres(place, folder, "initdb", words);
  // From any address: what reaches the server is a network of the lab alone.
  await writeFile(join(folder, "hba"), "local all all trust\nhost all all all trust\n", { mode: 0o644 });
  await startDatabase(database, place);
  await asPostgres(place, folder, "createdb", ["-h", folder, NAME]);
  return database;
}

export async function startDatabase({ folder }: LabDatabase, place: Place): Promise<void> {
  const settings = [
    `listen_addresses='${place.address}'`,
    `unix_socket_directories='${folder}'`,
    "max_connections=200",
    // What a lab tries is what its programs do, not what the machine's disk does.
    "fsync=off",
    `hba_file='${join(folder, "hba")}'`,
  ];
  const options = settings.map((one) => `-c ${one}`).join(" ");
  await pgCtl(place, folder, ["-l", join(folder, "log"), "-o", options, "start"]);
}

/** At once, as a crash: clients' connections break. */
export async function stopDatabase({ folder }: LabDatabase, place: Place): Promise<void> {
  await pgCtl(place, folder, ["-m", "immediate", "stop"]);
}

export async function removeDatabase(database: LabDatabase, place: Place): Promise<void> {
  await stopDatabase(database, place).catch(() => undefined);
  // Its last children may still be writing.
  await rm(database.folder, { recursive: true, force: true, maxRetries: 10, retryDelay: 50 });
}

/** One statement; what it answers, a line a row, columns apart by `|`. */
export const askDatabase = ({ folder }: LabDatabase, place: Place, sql: string): Promise<string> =>
  asPostgres(place, folder, "psql", ["-h", folder, "-d", NAME, "-qAtc", sql]);

const pgCtl = (place: Place, folder: string, words: string[]): Promise<string> =>
  asPostgres(place, folder, "pg_ctl", ["-D", join(folder, "data"), "-w", "-t", "60", ...words]);

async function asPostgres(place: Place, folder: string, program: string, words: string[]): Promise<string> {
  const user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--"];
  const argv = [...place.on, ...user, join(await ensurePostgres(), program), ...words];
  const { stdout } = await run(argv as [string], { cwd: folder, env: { ...place.mark } });
  return stdout;
}
