// The folder where one test run keeps the homes of its services, and the removal of whatever of them is left: at the end of
// the run, and of runs before that were killed.
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { sweep } from "../fixtures/inventory.ts";

const parent = "/var/tmp";
const prefix = "cloche-tests-";

/** Makes the folder of a lane of this run, and removes those of runs that were killed. */
export function openHomes(lane: number): string {
  for (const name of readdirSync(parent)) {
    const pid = name.startsWith(prefix) ? Number.parseInt(name.slice(prefix.length), 10) : Number.NaN;
    if (Number.isInteger(pid) && !isRunner(pid)) clearHomes(join(parent, name));
  }
  const homes = join(parent, `${prefix}${process.pid}-${lane}`);
  mkdirSync(homes, { recursive: true, mode: 0o700 });
  return homes;
}

/** The end of the logs of the services that are still there: a part that was ended could not print them itself. */
export function leftLogs(homes: string): string {
  return homesIn(homes)
    .flatMap((home) => ["console.log", "service.log"].map((name) => join(home, "log", name)))
    .filter((path) => existsSync(path))
    .map((path) => `--- ${path}\n${readFileSync(path, "utf8").trimEnd().split("\n").slice(-100).join("\n")}`)
    .join("\n");
}

/** Removes every home of a run and what its service has on the machine. What was there, one line each. */
export function clearHomes(homes: string): string[] {
  const left = homesIn(homes).flatMap(clearHome);
  rmSync(homes, { recursive: true, force: true, maxRetries: 5 });
  return left;
}

/** The same of one home. */
export function clearHome(home: string): string[] {
  const left = [`home: ${home}`, ...sweep(home)];
  rmSync(home, { recursive: true, force: true, maxRetries: 5 });
  return left;
}

const homesIn = (homes: string): string[] =>
  existsSync(homes) ? readdirSync(homes).map((name) => join(homes, name)) : [];

/** Pids are used again: it is a test run only when its command line says so. */
function isRunner(pid: number): boolean {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8").includes("tests/main.ts");
  } catch {
    return false;
  }
}
