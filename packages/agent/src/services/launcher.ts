import { constants } from "node:os";
import type { PullProgress, ServiceDefinition } from "@cloche/protocol";
import { programEnvironment } from "../exec/index.ts";
import type { ProcessTable } from "../processes/index.ts";
import { type Guest, type GuestProcess, SpawnError } from "../spawner/index.ts";
import type { ServiceLog } from "./service-log.ts";

/** A service's program, running. */
export interface Launched {
  process: GuestProcess;
  /** The container it runs in, with what an exec inside it starts from; undefined for a service of the users' tree. */
  container: LaunchedContainer | undefined;
  /** Frees what it ran in; called once its tree has ended. Commands that run in a container get `graceMs` to end by themselves. */
  release(graceMs: number): Promise<void>;
}
export interface LaunchedContainer {
  guest: Guest;
  env: Readonly<Record<string, string>>;
  user: string;
  workingDir: string;
}

export interface LaunchRequest {
  name: string;
  definition: ServiceDefinition;
  log: ServiceLog;
  /** Called when an image is being pulled, and when that is over. */
  onPhase(phase: "pulling" | "starting"): void;
  /** Called while an image is being pulled, with how far it is. */
  onPull(progress: PullProgress): void;
  /** Called with output of the program. */
  onOutput(): void;
  /** Stops a pull that nobody waits for any more. */
  signal: AbortSignal;
}

/** Brings a service's program to run. Rejects with `LaunchError` saying what in the definition is wrong. */
export interface Launcher {
  launch(request: LaunchRequest): Promise<Launched>;
  /** Removes what a deleted service left on the disk besides its definition and log. */
  remove(name: string): Promise<void>;
  /** Removes what a crash left on a disk that was just taken; `names` are the services that are defined on it. */
  tidy(names: ReadonlySet<string>): Promise<void>;
}

/** Why a service did not come to run, in public words, with the exit code that a shell would give. */
export class LaunchError extends Error {
  override readonly name = "LaunchError";
  readonly exitCode: number | null;

  constructor(message: string, exitCode: number | null, cause?: unknown) {
    super(message, { cause });
    this.exitCode = exitCode;
  }
}

/** Services without a container: in the users' own tree, with the sandbox's environment. */
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

/** Services run plainly or in containers, as their definitions say. */
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
  /** Of its service. */
  name: string;
}

/** Spawns a service's program, its output going to the log; while it runs it is in the list of processes. */
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
