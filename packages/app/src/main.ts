/** `node packages/app/src/main.ts up [--detach] | down | status [--json] | rotate-signing-key | prune-cache | update | take-over | backup | restore-backup`: what npm start, npm stop and the CLI call. */
import { resolve } from "node:path";
import { ConfigError, loadConfig, type Config } from "@cloche/base";
import { AlreadyRunning } from "./control-socket.ts";
import { printStatus } from "./status.ts";

const usage = `usage: up [--detach] | down | status [--json] | rotate-signing-key [--json] | prune-cache [--json] | update [--check] [--json] | take-over [--force] | backup <folder> | restore-backup <folder>
  up        set up what is missing, then serve until stopped; --detach returns when ready
  down      stop the service; running sandboxes are suspended and come back with the next start
  status    what runs and where; --json prints one JSON object
  rotate-signing-key  signs data plane tokens with a new key; those given out stay good until they expire
  prune-cache  removes artifacts of earlier versions from CLOCHE_CACHE that nobody has needed for a month
  update    makes the base file system and the kernel of virtual machines anew where Debian has newer packages; the next start
            uses them; --check: only says what is old, exit code 100 when something is
  take-over  makes database and checkpoint storage this home's, whoever's they were; --force: also while a service seems to use them
  backup    copies database, keys, authority and settings into a new folder; also while it serves
  restore-backup  puts such a folder back into a home in which nothing serves`;

/** Errors whose message says all that an operator needs; of others the stack is shown. */
const toldByMessage = new Set(["ClocheError", "SetupError", "StartFailed"]);

const exitCodes = { failure: 1, usage: 2, notRunning: 3, old: 100 } as const;

async function main(words: string[]): Promise<number> {
  const [command, ...options] = words;
  const folder = command === "backup" || command === "restore-backup" ? options.shift() : undefined;
  const unknown = options.find(
    (word) => !["--detach", "--json", "--no-banner", "--force", "--check"].includes(word),
  );
  if (unknown !== undefined) {
    console.error(`unknown option ${unknown}\n${usage}`);
    return exitCodes.usage;
  }
  const config: Config = loadConfig(process.env);
  // Each command loads only what it needs: the parts of the service take most of a second.
  switch (command) {
    case "up":
      if (options.includes("--detach")) await (await import("./detach.ts")).upDetached(config);
      else await (await import("./up.ts")).up(config, { banner: !options.includes("--no-banner") });
      return 0;
    case "down":
      await (await import("./down.ts")).down(config);
      return 0;
    case "backup":
    case "restore-backup": {
      if (folder === undefined) break;
      const { backUp, restoreBackup } = await import("./backup.ts");
      await (command === "backup" ? backUp : restoreBackup)(config, resolve(folder));
      return 0;
    }
    case "update": {
      const { update } = await import("./update.ts");
      const check = options.includes("--check");
      const isOld = await update(config, { check, json: options.includes("--json") });
      return check && isOld ? exitCodes.old : 0;
    }
    case "take-over":
      await (await import("./take-over.ts")).takeOverPlaces(config, options.includes("--force"));
      return 0;
    case "rotate-signing-key": {
      const { rotateSigningKey } = await import("./rotate-signing-key.ts");
      return (await rotateSigningKey(config, options.includes("--json"))) ? 0 : exitCodes.notRunning;
    }
    case "prune-cache": {
      const { pruneCache } = await import("./prune-cache.ts");
      return (await pruneCache(config, options.includes("--json"))) ? 0 : exitCodes.notRunning;
    }
    case "status":
      return (await printStatus(config, options.includes("--json"))) ? 0 : exitCodes.notRunning;
  }
  console.error(usage);
  return exitCodes.usage;
}

try {
  process.exitCode = await main(process.argv.slice(2));
} catch (error) {
  // By their names: their modules are loaded only by the commands that can throw them.
  const { name, code } = error as { name?: string; code?: string };
  const saysWhatToDo = toldByMessage.has(name ?? "") && code !== "internal";
  if (error instanceof ConfigError || saysWhatToDo || error instanceof AlreadyRunning) {
    console.error(`cloche: ${(error as Error).message}`);
  } else {
    console.error("cloche:", error);
  }
  process.exitCode = exitCodes.failure;
}
