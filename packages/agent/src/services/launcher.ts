import { constants } from "node:os";
import type { PullProgress, ServiceDefinition } from "@cloche/protocol";
import { programEnvironment } from "../exec/index.ts";
import type { ProcessTable } from "../processes/index.ts";
import type { ImageRules } from "./run-rules.ts";
import { type Guest, type GuestProcess, SpawnError } from "../spawner/index.ts";
import type { ServiceLog } from "./service-log.ts";

/** A running program of a service. */
export interface Launched {
  process: GuestProcess;
  /** The container of the program, with the settings for an exec in it; undefined for a service in the users' tree. */
  container: LaunchedContainer | undefined;
  /** Frees the container after the end of the tree. Commands that still run in it get `graceMs` to end by themselves. */
  release(graceMs: number): Promise<void>;
}
export interface LaunchedContainer {
  guest: Guest;
  env: Readonly<Record<string, string>>;
  user: string;
  workingDir: string;
  image: ImageRules;
}

export interface LaunchRequest {
  name: string;
  definition: ServiceDefinition;
  log: ServiceLog;
  /** Called when a pull of an image begins and when it ends. */
  onPhase(phase: "pulling" | "starting"): void;
  /** Called with the progress of a pull. */
  onPull(progress: PullProgress): void;
  /** Called with output of the program. */
  onOutput(): void;
  /** Aborts a pull. */
  signal: AbortSignal;
}

/** Starts a service's program. Rejects with `LaunchError` that names the fault of the definition. */
export interface Launcher {
  launch(request: LaunchRequest): Promise<Launched>;
  /** Removes the files of a deleted service, except its definition and log. */
  remove(name: string): Promise<void>;
  /** Removes files that a crash left on a disk that was just attached; `names` are the services defined on it. */
  tidy(names: ReadonlySet<string>): Promise<void>;
}

/** Why a service could not be started (a public message), with the exit code that a shell would give. */
export class LaunchError extends Error {
  override readonly name = "LaunchError";
  readonly exitCode: number | null;

  constructor(message: string, exitCode: number | null, cause?: unknown) {
    super(message, { cause });
    this.exitCode = exitCode;
  }
}

/** Starts services without a container: in the users' tree, with the sandbox's environment. */
export function plainLauncher(
  guest: () => Guest,
  environment: () => Readonly<Record<string, string>>,
  processes: ProcessTable,
): Launcher {
  return {
    remove: async () => undefined,
    tidy: async () => undefined,
    launch: async ({ name, definition, log, onOutput }) => {
      const { cmd, args = [], env, working_dir: cwd, user } = definition;
      const process = await launchProgram(guest(), {
        argv: [cmd, ...args],
        env: programEnvironment(environment(), env),
        ...(cwd === undefined ? {} : { cwd }),
        ...(user === undefined ? {} : { user }),
        log,
        onOutput,
        processes,
        kind: "service",
        name,
      });
      return { process, container: undefined, release: async () => undefined };
    },
  };
}

/** Chooses the launcher by the definition: container or users' tree. */
export function launcherByKind(plain: Launcher, containers: Launcher): Launcher {
  return {
    launch: (request) => (request.definition.container === true ? containers : plain).launch(request),
    remove: async (name) => {
      await plain.remove(name);
      await containers.remove(name);
    },
    tidy: async (names) => {
      await plain.tidy(names);
      await containers.tidy(names);
    },
  };
}

interface Program {
  argv: readonly string[];
  env: Record<string, string>;
  cwd?: string;
  user?: string;
  log: ServiceLog;
  onOutput(): void;
  processes: ProcessTable;
  kind: "service" | "container";
  /** Name of the service. */
  name: string;
}

/** Spawns a service's program. Its output goes to the log, and it is in the list of processes while it runs. */
export async function launchProgram(guest: Guest, program: Program): Promise<GuestProcess> {
  const { argv, env, cwd, user, log, onOutput, processes, kind, name } = program;
  const listed = processes.supervise({ kind, name, cmd: argv, dir: cwd, user });
  try {
    const running = await guest.spawn({
      argv,
      env,
      ...(cwd === undefined ? {} : { cwd }),
      ...(user === undefined ? {} : { user }),
      tree: "hold",
      onOutput: (stream, chunk) => {
        onOutput();
        listed.take(stream, chunk);
        return log.append(chunk);
      },
    });
    listed.follow(running);
    return running;
  } catch (error) {
    if (error instanceof SpawnError) throw explain(error, argv[0] ?? "", cwd, user);
    throw error;
  }
}

function explain(
  error: SpawnError,
  program: string,
  cwd: string | undefined,
  user: string | undefined,
): LaunchError {
  if (error.stage === "user") return new LaunchError(`there is no user ${JSON.stringify(user)}`, null, error);
  if (error.stage === "cwd") {
    return new LaunchError(`the working directory ${JSON.stringify(cwd)} cannot be entered`, null, error);
  }
  if (error.errno === constants.errno.E2BIG) {
    return new LaunchError("its arguments and environment are too large for the system", null, error);
  }
  if (error.stage === "exec") {
    if (error.errno === constants.errno.ENOENT && error.message !== "") {
      const why = `the program ${JSON.stringify(program)} needs ${JSON.stringify(error.message)}, which does not exist`;
      return new LaunchError(why, 127, error);
    }
    return error.errno === constants.errno.ENOENT
      ? new LaunchError(`the program ${JSON.stringify(program)} was not found`, 127, error)
      : new LaunchError(`the program ${JSON.stringify(program)} cannot be executed`, 126, error);
  }
  return new LaunchError("the program could not be started", null, error);
}
