import { spawn } from "node:child_process";
import { once } from "node:events";
import { constants } from "node:os";
import { existsSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { UsageError } from "../exit-codes.ts";
import { printJson } from "../terminal.ts";
import type { Registry } from "../register.ts";

const serviceMain = join("packages", "app", "src", "main.ts");

/** The checkout of this command; undefined for the packaged command. */
function findCheckout(): string | undefined {
  for (let folder = import.meta.dirname; ; folder = dirname(folder)) {
    if (existsSync(join(folder, serviceMain))) return folder;
    if (dirname(folder) === folder) return undefined;
  }
}

export const hasCheckout = (): boolean => findCheckout() !== undefined;

const answersJson = new Set([
  "orphans",
  "teams",
  "doctor",
  "status",
  "rotate-signing-key",
  "prune-cache",
  "update",
  "hosts",
  "join-token",
]);

/** Runs the service's program as a separate process, as npm start does, because the service is another trust domain. */
export async function runService(registry: Registry, args: string[]): Promise<boolean> {
  const root = findCheckout();
  if (root === undefined) {
    const command = `npx cloche ${args.join(" ")}`;
    throw new UsageError(`this is for the service's own machine: in its checkout, run ${command}`);
  }
  const json = registry.program.opts<{ json?: boolean }>().json === true;
  const flags = json && answersJson.has(args[0] ?? "") ? ["--json"] : [];
  const node = ["--disable-warning=ExperimentalWarning", join(root, serviceMain), ...args, ...flags];
  const child = spawn(process.execPath, node, { cwd: root, env: registry.terminal.env, stdio: "inherit" });
  // Ctrl-C also reaches the child, which then stops. This process must not end before the child.
  const wait = (): void => undefined;
  const passOn = (): void => void child.kill("SIGTERM");
  process.on("SIGINT", wait).on("SIGTERM", passOn);
  const [code, signal] = (await once(child, "exit")) as [number | null, NodeJS.Signals | null];
  process.off("SIGINT", wait).off("SIGTERM", passOn);
  registry.setExitCode(code ?? 128 + (signal === null ? 0 : constants.signals[signal]));
  return code === 0;
}

/** Runs a command whose program prints only text, on standard error; with --json then prints `done`. */
export async function runAndReport(registry: Registry, args: string[], done: object): Promise<void> {
  const { program, terminal } = registry;
  const isDone = await runService(registry, args);
  if (isDone && program.opts<{ json?: boolean }>().json === true) await printJson(terminal, done);
}

/** doctor, orphans, teams: for the operator, on the service's machine. */
export function addOperatorCommands(registry: Registry): void {
  const { program } = registry;
  program
    .command("doctor")
    .description(
      "check what a start needs on this machine (root, system, ports, disk, settings) and say what to do",
    )
    .addHelpText("after", "\nExample:\n  cloche doctor --json")
    .action(async () => void (await runService(registry, ["doctor"])));
  const orphans = program
    .command("orphans")
    .description(
      "machines that the database does not know, as after a restore; they are kept until you decide",
    )
    .addHelpText("after", "\nExample:\n  cloche orphans")
    .action(async () => void (await runService(registry, ["orphans"])));
  orphans
    .command("adopt <id>")
    .description("make the machine a sandbox again, with its disk, memory and checkpoints")
    .option("--team <id>", "the team that gets it; default: the team that had it")
    .action(async (id: string, { team }: { team?: string }) => {
      const flags = team === undefined ? [] : ["--team", team];
      await runService(registry, ["orphans", "adopt", id, ...flags]);
    });
  orphans
    .command("delete <id>")
    .description("destroy the machine and its disk; its checkpoints stay")
    .action(async (id: string) => void (await runService(registry, ["orphans", "delete", id])));
  const teams = program
    .command("teams")
    .description("the teams of the service on this machine")
    .addHelpText("after", "\nExample:\n  cloche teams create research")
    .action(async () => void (await runService(registry, ["teams"])));
  teams
    .command("create <name>")
    .description("make a team and print its first API key, which is shown only once")
    .action(async (name: string) => void (await runService(registry, ["teams", "create", name])));
}

/** up, down, rotate-signing-key, prune-cache, take-over, backup. */
export function addLocalServiceCommands(registry: Registry): void {
  const { program } = registry;
  program
    .command("up")
    .description("set up and start the service on this machine, as npm start does")
    .option("-d, --detach", "return when it is ready")
    .addHelpText("after", "\nExample:\n  cloche up --detach")
    .action(async (options: { detach?: boolean }) => {
      const json = program.opts<{ json?: boolean }>().json === true;
      if (json && options.detach !== true)
        throw new UsageError("--json needs --detach: without, up does not end");
      const isUp = await runService(registry, ["up", ...(options.detach === true ? ["--detach"] : [])]);
      if (json && isUp) await runService(registry, ["status"]);
    });
  program
    .command("down")
    .description(
      "stop the service on this machine; sandboxes are suspended and come back with the next start",
    )
    .action(() => runAndReport(registry, ["down"], { stopped: true }));
  program
    .command("rotate-signing-key")
    .description("sign data plane tokens with a new key; those given out stay good until they expire")
    .addHelpText("after", "\nExample:\n  cloche rotate-signing-key --json")
    .action(async () => void (await runService(registry, ["rotate-signing-key"])));
  program
    .command("prune-cache")
    .description("remove artifacts of earlier versions that nobody on this machine has needed for a month")
    .addHelpText("after", "\nExample:\n  cloche prune-cache")
    .action(async () => void (await runService(registry, ["prune-cache"])));
  program
    .command("take-over")
    .description(
      "make database and checkpoint storage this home's, whoever's they were: for a home that was made anew or moved",
    )
    .option("--force", "also while a service seems to use them; it ends within a minute")
    .addHelpText("after", "\nExample:\n  cloche take-over && cloche up --detach")
    .action((options: { force?: boolean }) =>
      runAndReport(registry, ["take-over", ...(options.force === true ? ["--force"] : [])], {
        taken_over: true,
      }),
    );
  const backup = program
    .command("backup")
    .description("database, keys and authority of the service on this machine");
  backup
    .command("create <folder>")
    .description("copy them into a new folder; the service may be running")
    .addHelpText("after", "\nExample:\n  cloche backup create /backup/cloche-1")
    .action((folder: string) =>
      runAndReport(registry, ["backup", resolve(folder)], { backup: resolve(folder) }),
    );
  backup
    .command("restore <folder>")
    .description("put them back into a home that has none and where no service runs")
    .action((folder: string) =>
      runAndReport(registry, ["restore-backup", resolve(folder)], { restored: resolve(folder) }),
    );
}
