// `npm run lab -- up | down | status | …`: a cluster of three hosts on this computer, to try things on (docs/clusters.md). Everything of it
// lies in `CLOCHE_LAB` (default /var/tmp/cloche-lab) and the homes beside it.
import { existsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { terminalProgress } from "../../packages/app/src/progress.ts";
import { EDGES, GATEWAYS, HOSTS, Lab } from "./lab.ts";

const base = process.env["CLOCHE_LAB"] || "/var/tmp/cloche-lab";
const cache = process.env["CLOCHE_CACHE"] || "/var/tmp/cloche-cache";
const usage = `usage: npm run lab -- <command>
  up                      builds what is missing, then starts 3 hosts, 2 gateways, 2 edges, PostgreSQL and an S3 server
  status                  which of them run, and where
  down                    ends and removes all of it
  stop|start|kill <node>  ends a program (SIGTERM or SIGKILL) and starts it again: ${[...GATEWAYS, ...HOSTS, ...EDGES].join(", ")}
  lose <host>             ends everything of a host and removes its disk, as if its computer had burned down
  cut|join <node> <node>  drops all packets between two nodes, or none
  cloche <words>          an operator's command with a gateway's settings: hosts, cordon, uncordon, drain, join-token`;

async function main([command, ...words]: string[]): Promise<number> {
  const [node = "", other = ""] = words;
  switch (command) {
    case "up":
      return await up();
    case "down":
      if (existsSync(join(base, "lab.json"))) await Lab.found(base).down();
      else await Lab.remove(base);
      return 0;
    case "status":
      for (const line of Lab.found(base).status()) console.log(line);
      return 0;
    case "start":
      await Lab.found(base).start(node);
      return 0;
    case "stop":
      await Lab.found(base).stop(node);
      return 0;
    case "kill":
      await Lab.found(base).kill(node);
      return 0;
    case "lose":
      await Lab.found(base).lose(node);
      return 0;
    case "cut":
    case "join":
      await Lab.found(base).connect(node, [other], command === "join");
      return 0;
    case "cloche":
      console.log((await Lab.found(base).command(words)).trimEnd());
      return 0;
  }
  console.error(usage);
  return 2;
}

async function up(): Promise<number> {
  const progress = terminalProgress(() => undefined);
  const lab = await Lab.up({ base, cache, progress: (step, detail) => progress.step(step, detail) });
  progress.done();
  const file = join(base, "env");
  const settings = Object.entries(await lab.clientSettings());
  writeFileSync(file, settings.map(([name, value]) => `export ${name}='${value}'\n`).join(""), {
    mode: 0o600,
  });
  console.log(`\nThe cluster runs. Its clients' settings are in ${file}:\n`);
  console.log(`  . ${file}\n  npx cloche create --name first\n  npx cloche exec first -- uname -a\n`);
  return 0;
}

try {
  process.exitCode = await main(process.argv.slice(2));
} catch (error) {
  console.error(`lab: ${(error as Error).message}`);
  process.exitCode = 1;
}
