/** `node packages/service/src/main.ts up [--detach] | down | status [--json]`: what npm start, npm stop and the CLI call. */
import { ConfigError, loadConfig, type Config } from "@cloche/base";
import { SetupError } from "@cloche/host/setup";
import { AlreadyRunning } from "./control-socket.ts";
import { down } from "./down.ts";
import { printStatus } from "./status.ts";
import { up, upDetached } from "./up.ts";

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
  switch (command) {
    case "up":
      await (options.includes("--detach")
        ? upDetached(config)
        : up(config, { banner: !options.includes("--no-banner") }));
      return 0;
    case "down":
      await down(config);
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
  if (error instanceof ConfigError || error instanceof SetupError || error instanceof AlreadyRunning) {
    console.error(`cloche: ${error.message}`);
  } else {
    console.error("cloche:", error);
  }
  process.exitCode = exitCodes.failure;
}
