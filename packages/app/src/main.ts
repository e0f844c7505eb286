/** `node packages/app/src/main.ts <command>`: called by npm start, npm stop and the CLI; `usage` names the commands. */
import { resolve } from "node:path";
import { inspect } from "node:util";
import { ConfigError, loadConfig, type Config } from "@cloche/base";
import { printableLines } from "@cloche/protocol";
import { AlreadyRunning } from "./control-socket.ts";
import { printStatus } from "./status.ts";

const usage = `usage: up [--detach] | down | status [--json] | rotate-signing-key [--json] | prune-cache [--json] | update [--check] [--json] | take-over [--force] | backup <folder> | restore-backup <folder> | orphans [adopt <id> [--team <id>] | delete <id>] [--json] | teams [create <name>] [--json] | doctor [--json]
       gateway | edge | host [--detach] | join-token <host|edge> [--reusable] [--hours N] [--json] | hosts [--json] | cordon | uncordon | drain <host id> | forget <host|edge>/<id>
  up        set up what is missing, then serve until stopped; --detach returns when ready
  down      stop the service; running sandboxes are suspended and come back with the next start
  status    what runs and where; --json prints one JSON object
  rotate-signing-key  signs data plane tokens with a new key; those given out stay good until they expire
  prune-cache  removes artifacts of earlier versions from CLOCHE_CACHE that nobody has needed for a month
  update    makes the base file system and the kernel of virtual machines anew where Debian has newer packages; the next start
            uses them; --check: only says what is old, exit code 100 when something is
  take-over  makes database and checkpoint storage this home's, whoever's they were; --force: also while a service seems to use them
  backup    copies database, keys, authority and settings into a new folder; also while it serves
  restore-backup  puts such a folder back into a home in which nothing serves
  orphans   machines that the database does not know, as after a restore: adopt makes one a sandbox again, delete destroys it
  teams     the teams; create makes one and prints its first API key
  doctor    checks what a start needs, and says what to do
Of a cluster (docs/clusters.md):
  gateway, edge, host  serve as one part of it until stopped; --detach returns when ready
  join-token  prints what brings a new host or edge in, once; --reusable: any number of them; --hours: how long (1; reusable: 8760)
  hosts     the hosts, their states and their memory
  cordon, uncordon, drain  a host takes no new sandboxes; takes them again; takes none and moves those it has
  forget    another computer may join under that id: the one that had it is gone for good`;

/** Errors whose message is enough for an operator; of other errors the stack is printed. */
const shownByMessage = new Set(["ClocheError", "SetupError", "StartFailed", "StopFailed", "OrderFailed"]);

const exitCodes = { failure: 1, usage: 2, notRunning: 3, old: 100 } as const;

/** Commands whose first word is a name. */
const takesName = new Set([
  "orphans adopt",
  "orphans delete",
  "teams create",
  "backup",
  "restore-backup",
  "join-token",
  "cordon",
  "uncordon",
  "drain",
  "forget",
]);
const flags = new Set(["--detach", "--json", "--no-banner", "--force", "--check", "--reusable"]);
const hoursMax = 8_760;

/** The words after the command. */
interface Options {
  has(flag: string): boolean;
  /** First word of the commands in `takesName`. */
  name: string;
  hours: number | undefined;
  team: string;
}

/** Commands with a second word. */
const subcommands = new Set(["orphans adopt", "orphans delete", "teams create"]);

/** Undefined: an option is wrong; the error was printed. */
function readOptions(command: string | undefined, args: string[]): Options | undefined {
  const rest = [...args];
  const name = takesName.has(command ?? "") ? rest.shift() : "";
  const teamAt = rest.indexOf("--team");
  const [, team = ""] = teamAt === -1 ? [] : rest.splice(teamAt, 2);
  const hoursAt = rest.indexOf("--hours");
  const [, text] = hoursAt === -1 ? [] : rest.splice(hoursAt, 2);
  const hours = hoursAt === -1 ? undefined : Number(text);
  const unknown = rest.find((arg) => !flags.has(arg));
  if (unknown !== undefined) console.error(`unknown option ${unknown}\n${usage}`);
  else if (hours !== undefined && !(hours > 0 && hours <= hoursMax))
    console.error(`--hours must be a number above 0 and at most ${hoursMax}\n${usage}`);
  else if (name === undefined) console.error(usage);
  else return { has: (flag) => rest.includes(flag), name, hours, team };
  return undefined;
}

/** Endpoints that a single machine opens on its loopback. A gateway of a cluster opens them only if their ports are set. */
const gatewayDefaults: Partial<Config> = { e2bPort: 0, mcpPort: 0 };

async function main([first, ...rest]: string[]): Promise<number> {
  const [second = "", ...others] = rest;
  const isPair = subcommands.has(`${first} ${second}`);
  const command = isPair ? `${first} ${second}` : first;
  const args = isPair ? others : rest;
  const options = readOptions(command, args);
  if (options === undefined) return exitCodes.usage;
  // What is made for sandboxes, base file systems for example, is read by other users there. Secrets have modes of their own.
  process.umask(0o022);
  const config: Config = loadConfig(process.env, undefined, command === "gateway" ? gatewayDefaults : {});
  const done = (await ofService(command, config, options)) ?? (await ofCluster(command, config, options));
  if (done === undefined) console.error(usage);
  return done ?? exitCodes.usage;
}

/** Commands of a single machine. Each loads only the modules it needs: all parts take most of a second. Undefined: another command. */
async function ofService(
  command: string | undefined,
  config: Config,
  { has, name, team }: Options,
): Promise<number | undefined> {
  const json = has("--json");
  const unlessNotRunning = (isDone: boolean): number => (isDone ? 0 : exitCodes.notRunning);
  switch (command) {
    case "orphans":
      return unlessNotRunning(await (await import("./operator-orders.ts")).printOrphans(config, json));
    case "orphans adopt":
      return unlessNotRunning(
        await (await import("./operator-orders.ts")).adoptOrphan(config, name, team, json),
      );
    case "orphans delete":
      return unlessNotRunning(await (await import("./operator-orders.ts")).deleteOrphan(config, name, json));
    case "teams":
      return unlessNotRunning(await (await import("./operator-orders.ts")).printTeams(config, json));
    case "teams create":
      return unlessNotRunning(await (await import("./operator-orders.ts")).createTeam(config, name, json));
    case "doctor":
      return (await (await import("./doctor.ts")).doctor(config, process.env, json)) ? 0 : exitCodes.failure;
    case "up":
      if (await (await import("./running-already.ts")).showRunning(config)) return 0;
      await (await import("./preflight.ts")).requirePreflight(config);
      if (has("--detach")) await (await import("./detach.ts")).startDetached(config, command);
      else await (await import("./up.ts")).up(config, { banner: !has("--no-banner") });
      return 0;
    case "down":
      await (await import("./down.ts")).down(config);
      return 0;
    case "backup":
    case "restore-backup": {
      const { backUp, restoreBackup } = await import("./backup.ts");
      await (command === "backup" ? backUp : restoreBackup)(config, resolve(name));
      return 0;
    }
    case "update": {
      const { update } = await import("./update.ts");
      const check = has("--check");
      const isOld = await update(config, { check, json: has("--json") });
      return check && isOld ? exitCodes.old : 0;
    }
    case "take-over":
      await (await import("./take-over.ts")).takeOverPlaces(config, has("--force"));
      return 0;
    case "rotate-signing-key": {
      const { rotateSigningKey } = await import("./rotate-signing-key.ts");
      return (await rotateSigningKey(config, has("--json"))) ? 0 : exitCodes.notRunning;
    }
    case "prune-cache": {
      const { pruneCache } = await import("./prune-cache.ts");
      return (await pruneCache(config, has("--json"))) ? 0 : exitCodes.notRunning;
    }
    case "status":
      return (await printStatus(config, has("--json"))) ? 0 : exitCodes.notRunning;
  }
  return undefined;
}

/** Commands of a cluster. Undefined: another command. */
async function ofCluster(
  command: string | undefined,
  config: Config,
  { has, name, hours }: Options,
): Promise<number | undefined> {
  switch (command) {
    case "gateway":
    case "edge":
    case "host":
      if (has("--detach")) await (await import("./detach.ts")).startDetached(config, command);
      else await (await import("./roles/run-role.ts")).runRole(config, command);
      return 0;
    case "join-token": {
      const { printJoinToken } = await import("./cluster/operator-commands.ts");
      await printJoinToken(config, name, { isReusable: has("--reusable"), json: has("--json"), hours });
      return 0;
    }
    case "hosts":
      await (await import("./cluster/operator-commands.ts")).printHosts(config, has("--json"));
      return 0;
    case "forget":
      await (await import("./cluster/operator-commands.ts")).forgetMember(config, name);
      return 0;
    case "cordon":
    case "uncordon":
    case "drain":
      await (await import("./cluster/operator-commands.ts")).orderHost(config, command, name);
      return 0;
  }
  return undefined;
}

try {
  process.exitCode = await main(process.argv.slice(2));
} catch (error) {
  // Compared by name, because only commands that can throw these errors load their modules.
  const { name, code } = error as { name?: string; code?: string };
  const saysWhatToDo = shownByMessage.has(name ?? "") && code !== "internal";
  if (error instanceof ConfigError || saysWhatToDo || error instanceof AlreadyRunning) {
    console.error(`cloche: ${printableLines((error as Error).message)}`);
  } else {
    console.error(`cloche: ${printableLines(inspect(error))}`);
  }
  process.exitCode = exitCodes.failure;
}
