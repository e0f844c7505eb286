/** `node packages/service/src/main.ts up [--detach] | down | status [--json]`: what npm start, npm stop and the CLI call. */
import { ConfigError, loadConfig, type Config } from "@cloche/base";
import { AlreadyRunning } from "./control-socket.ts";
import { printStatus } from "./status.ts";

const usage = `usage: up [--detach] | down | status [--json]
  up        set up what is missing, then serve until stopped; --detach returns when ready
  down      stop the service; running sandboxes are suspended and come back with the next start
  status    what runs and where; --json prints one JSON object`;

const exitCodes = { failure: 1, usage: 2, notRunning: 3 } as const;

async function main(words: string[]): Promise<number> {
  const [command, ...options] = words;
  const unknown = options.find((word) => !["--detach", "--json", "--no-banner"].includes(word));
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
    case "status":
      return (await printStatus(config, options.includes("--json"))) ? 0 : exitCodes.notRunning;
    default:
      console.error(usage);
      return exitCodes.usage;
  }
}

try {
  process.exitCode = await main(process.argv.slice(2));
} catch (error) {
  // A SetupError is known by its name: its module is loaded only by the commands that can throw it.
  const isSetupError = error instanceof Error && error.name === "SetupError";
  if (error instanceof ConfigError || isSetupError || error instanceof AlreadyRunning) {
    console.error(`cloche: ${(error as Error).message}`);
  } else {
    console.error("cloche:", error);
  }
  process.exitCode = exitCodes.failure;
}
