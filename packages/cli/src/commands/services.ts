import { readFile } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";
import {
  humanBytes,
  type PullProgress,
  type Sandbox,
  type ServiceDefinition,
  type ServiceRecord,
  type Services,
} from "@cloche/sdk";
import { type Command, Option } from "commander";
import { exitCodes, NotFoundError, UsageError } from "../exit-codes.ts";
import {
  collect,
  collectPairs,
  portNumber,
  present,
  requireCommand,
  seconds,
  wholeNumber,
} from "../options.ts";
import { during, isShown } from "../progress.ts";
import {
  printFields,
  printJson,
  printJsonLine,
  printLines,
  printTable,
  printText,
  readAll,
  write,
} from "../terminal.ts";
import { act, type Registry, type Run } from "../register.ts";

function phaseOf({ status, phase, pull }: ServiceRecord): string {
  if (phase === "") return status;
  return `${status} (${pull === undefined ? phase : pullText(pull)})`;
}

function pullText(pull: PullProgress): string {
  if (pull.stage === "unpacking") return `unpacking ${pull.layers_total} layers`;
  const bytes = `${humanBytes(pull.bytes_done)} of ${humanBytes(pull.bytes_total)}`;
  return `pulling: ${bytes}, ${pull.layers_done} of ${pull.layers_total} layers`;
}

const checkEveryMs = 500;

/** Starts a service; on a terminal shows the progress of image pulls, which may take minutes. */
async function start(run: Run, { services }: Sandbox, name: string): Promise<ServiceRecord> {
  const { signal } = run;
  let seen = `starting ${name}`;
  const over = new AbortController();
  const watch = async (): Promise<void> => {
    while (!over.signal.aborted) {
      const list = await services.list({ signal: over.signal });
      const pulling = list.find(({ phase }) => phase === "pulling");
      seen =
        pulling === undefined
          ? `starting ${name}`
          : `${pulling.name}: ${pulling.pull === undefined ? "pulling" : pullText(pulling.pull)}`;
      await sleep(checkEveryMs, undefined, { signal: over.signal });
    }
  };
  // A failed read of the progress says nothing about the start.
  if (isShown(run)) void watch().catch(() => undefined);
  try {
    return await during(
      run,
      () => seen,
      () => services.start(name, { signal }),
    );
  } finally {
    over.abort();
  }
}

async function show({ json, terminal }: Run, service: ServiceRecord): Promise<void> {
  if (json) return printJson(terminal, service);
  return printFields(terminal, [
    ["name", service.name],
    ["status", phaseOf(service)],
    ["cmd", service.cmd],
    ["pid", service.pid === 0 ? "" : String(service.pid)],
    ["container", service.container ? "yes" : ""],
    ["exit code", service.exit_code === null ? "" : String(service.exit_code)],
    ["restarts", service.restarts === 0 ? "" : String(service.restarts)],
    ["error", service.error],
  ]);
}

interface DefineFlags {
  file?: string;
  cmd?: string;
  arg?: string[];
  env?: Record<string, string>;
  dir?: string;
  user?: string;
  healthPort?: number;
  healthcheck?: boolean;
  startTimeout?: number;
  stopSignal?: string;
  stopTimeout?: number;
  needs?: string[];
  image?: string;
  restart?: "never" | "on-failure" | "always";
  registryUsername?: string;
  registryCa?: string;
}

/** A definition from a JSON file, overridden by flags, overridden by a command line after `--`. */
async function readDefinition(run: Run, command: string[], flags: DefineFlags): Promise<ServiceDefinition> {
  const definition: Partial<ServiceDefinition> = {
    ...(flags.file === undefined ? {} : await readJsonFile(run, flags.file)),
    ...present({
      cmd: command[0] ?? flags.cmd,
      args: command.length > 0 ? command.slice(1) : flags.arg,
      env: flags.env,
      working_dir: flags.dir,
      user: flags.user,
      health_port: flags.healthPort,
      healthcheck: flags.healthcheck === false ? false : undefined, // true is commander's default
      start_timeout_secs: flags.startTimeout,
      stop_signal: flags.stopSignal,
      stop_timeout_secs: flags.stopTimeout,
      needs: flags.needs,
      image: flags.image,
      container: flags.image === undefined ? undefined : true,
      restart: flags.restart,
      registry_username: flags.registryUsername,
      registry_password:
        flags.registryUsername === undefined ? undefined : run.terminal.env.CLOCHE_REGISTRY_PASSWORD,
      registry_ca: flags.registryCa === undefined ? undefined : await readFile(flags.registryCa, "utf8"),
    }),
  };
  // In a container an empty cmd means the image's entrypoint.
  if (definition.cmd === undefined && definition.container === true) definition.cmd = "";
  if (definition.cmd === undefined) {
    throw new UsageError(
      "the program is missing; for example: cloche service define demo web -- python3 -m http.server 8080",
    );
  }
  return definition as ServiceDefinition;
}

async function readJsonFile(run: Run, file: string): Promise<object> {
  const text =
    file === "-" ? (await readAll(run.terminal.stdin)).toString("utf8") : await readFile(file, "utf8");
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new UsageError(`${file} is not valid JSON: ${(error as Error).message}`);
  }
  if (typeof value !== "object" || value === null || Array.isArray(value))
    throw new UsageError(`${file} must hold a JSON object`);
  return value;
}

/** service define, ls, get, start, stop, rm, logs, exec. */
// oxlint-disable-next-line max-lines-per-function -- a list of commands, a few lines each
export function addServiceCommands(registry: Registry): void {
  const service = registry.program
    .command("service")
    .description("supervised background services of a sandbox");

  service
    .command("define <sandbox> <name> [command...]")
    .description("create or replace a service; a running one goes on as it is until its next start")
    .option("-f, --file <json>", "definition as JSON, - for standard input; other options go over it")
    .option("--cmd <program>", "program to run; or give the whole command behind --")
    .option("--arg <argument>", "repeatable", collect)
    .option("-e, --env <KEY=VALUE>", "repeatable", collectPairs)
    .option("-w, --dir <path>", "working directory")
    .option("-u, --user <user>", "default root")
    .option("--health-port <port>", "it counts as running when this port accepts connections", portNumber)
    .option("--no-healthcheck", "the health check of the image does not count")
    .option(
      "--start-timeout <time>",
      "such as 90s or 5m; how long it may take to come up, default 60s",
      seconds,
    )
    .option("--stop-signal <signal>", "asks the program to end; default the image's, or SIGTERM")
    .option("--stop-timeout <time>", "after that signal it is killed; default the image's, or 10s", seconds)
    .option("--needs <service>", "start this one first; repeatable", collect)
    .option(
      "--image <reference>",
      "run in a container of this OCI image; without a command its own entrypoint",
    )
    .addOption(
      new Option("--restart <when>", "after it exits by itself; default never").choices([
        "never",
        "on-failure",
        "always",
      ]),
    )
    .option("--registry-username <name>", "the password is read from CLOCHE_REGISTRY_PASSWORD")
    .option("--registry-ca <file>", "PEM of the registry's own CA")
    .addHelpText(
      "after",
      `
Examples:
  cloche service define demo web --health-port 8080 --needs db -- python3 -m http.server 8080
  cloche service define demo db --image docker.io/library/redis:7 --health-port 6379
  cloche service define demo worker -f worker.json`,
    )
    .action(
      act(registry, async (run, nameOrId: string, name: string, args: string[], flags: DefineFlags) => {
        const definition = await readDefinition(run, args, flags);
        const sandbox = await run.sandbox(nameOrId);
        await show(run, await sandbox.services.put(name, definition, { signal: run.signal }));
      }),
    );

  service
    .command("ls <sandbox>")
    .description("list the services")
    .action(
      act(registry, async (run, nameOrId: string) => {
        const services = await (await run.sandbox(nameOrId)).services.list({ signal: run.signal });
        if (run.json) return printJson(run.terminal, { services });
        const rows = services.map((one) => [
          one.name,
          phaseOf(one),
          one.pid === 0 ? "" : String(one.pid),
          one.cmd,
          one.error,
        ]);
        return printTable(run.terminal, ["NAME", "STATUS", "PID", "CMD", "ERROR"], rows);
      }),
    );

  service
    .command("get <sandbox> <name>")
    .description("show a service")
    .action(
      act(registry, async (run, nameOrId: string, name: string) =>
        show(run, await (await run.sandbox(nameOrId)).services.get(name, { signal: run.signal })),
      ),
    );

  for (const [verb, description] of [
    ["start", "start a service, what it needs first, and wait until it runs or has failed"],
    ["stop", "stop a service and its whole process tree"],
  ] as const) {
    service
      .command(`${verb} <sandbox> <name>`)
      .description(description)
      .action(
        act(registry, async (run, nameOrId: string, name: string) => {
          const sandbox = await run.sandbox(nameOrId);
          const record =
            verb === "start"
              ? await start(run, sandbox, name)
              : await sandbox.services.stop(name, { signal: run.signal });
          await show(run, record);
          return record.status === "failed" ? exitCodes.failed : exitCodes.done;
        }),
      );
  }

  service
    .command("rm <sandbox> <name>")
    .description("stop a service and remove its definition")
    .action(
      act(registry, async (run, nameOrId: string, name: string) => {
        const answer = await (await run.sandbox(nameOrId)).services.delete(name, { signal: run.signal });
        if (run.json) await printJson(run.terminal, answer);
        else await printLines(run.terminal, name);
      }),
    );

  const logs = (parent: Command, name: string): void =>
    void parent
      .command(`logs <sandbox> ${name}`)
      .description("print a service's log")
      .option("-f, --follow", "go on as it is written, until Ctrl-C")
      .option("-n, --tail <lines>", "only the last lines", wholeNumber)
      .addHelpText("after", "\nExamples:\n  cloche service logs demo web -f --tail 20\n  cloche logs demo")
      .action(act(registry, printLog));
  logs(service, "<name>");
  // Where there is only one service, its name may be left out.
  logs(registry.program, "[service]");

  service
    .command("exec <sandbox> <name> [command...]")
    .description("run a command in the container of a service; its exit code is passed through")
    .option("--timeout <seconds>", "kill it after this time", wholeNumber)
    .addHelpText("after", "\nExample:\n  cloche service exec demo db -- redis-cli ping")
    .action(
      act(
        registry,
        async (run, nameOrId: string, name: string, args: string[], options: { timeout?: number }) => {
          const command = requireCommand(args, "cloche service exec demo db -- redis-cli ping");
          const { services } = await run.sandbox(nameOrId);
          const answer = await services.exec(name, command, {
            ...present({ timeout_secs: options.timeout }),
            signal: run.signal,
          });
          if (run.json) await printJson(run.terminal, answer);
          else {
            await write(run.terminal.stdout, answer.stdout);
            await write(run.terminal.stderr, answer.stderr);
          }
          return answer.exit_code;
        },
      ),
    );
}

async function printLog(
  run: Run,
  nameOrId: string,
  named: string | undefined,
  options: { follow?: boolean; tail?: number },
): Promise<void> {
  const { services } = await run.sandbox(nameOrId);
  const name = named ?? (await onlyService(run, services, nameOrId));
  const request = { ...present({ tail: options.tail }), signal: run.signal };
  if (options.follow !== true) {
    const log = await services.logs(name, request);
    return run.json ? printJson(run.terminal, { log }) : printText(run.terminal, log);
  }
  for await (const text of services.followLogs(name, request))
    await (run.json ? printJsonLine(run.terminal, { log: text }) : printText(run.terminal, text));
}

async function onlyService(run: Run, services: Services, nameOrId: string): Promise<string> {
  const names = (await services.list({ signal: run.signal })).map(({ name }) => name);
  if (names.length === 1 && names[0] !== undefined) return names[0];
  if (names.length === 0)
    throw new NotFoundError(
      `${nameOrId} has no service; what a process wrote is in cloche output: see cloche ps ${nameOrId}`,
    );
  throw new UsageError(`${nameOrId} has ${names.length} services; name one: ${names.join(", ")}`);
}
