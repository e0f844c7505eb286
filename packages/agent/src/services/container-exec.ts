import { ClocheError } from "@cloche/protocol";
import { collectCommand, execIdOf, type RunningExecs } from "../exec/index.ts";
import { hasDeparted } from "../http/departure.ts";
import type { Exchange } from "../http/exchange.ts";
import { optionalInteger, requiredCommand } from "../http/fields.ts";
import type { ProcessTable } from "../processes/index.ts";
import type { Supervisor } from "./supervisor.ts";

/** Answer of `POST /v1/services/{name}/exec`. */
export interface ContainerExecAnswer {
  stdout: string;
  stderr: string;
  exit_code: number;
  timed_out: boolean;
  /** True if one of its processes was killed because the sandbox's memory was used up; else absent. */
  out_of_memory?: boolean;
  /** True if output passed 16 MiB and was cut; else absent. */
  stdout_truncated?: boolean;
  stderr_truncated?: boolean;
}

export interface ContainerExecParts {
  running: RunningExecs;
  processes: ProcessTable;
}

const timeoutSecondsMax = 31_536_000;

/**
 * Runs a command in a service's container with the container's environment, user and directory (spec/contract.md,
 * services: exec in container). Exit codes, timeout and cut-off clients are as with `POST /v1/exec`. 400 if the service is no
 * container, 409 if it does not run.
 */
export async function execInContainer(
  supervisor: Supervisor,
  name: string,
  exchange: Exchange,
  parts: ContainerExecParts,
): Promise<ContainerExecAnswer> {
  const service = supervisor.get(name);
  const body = await exchange.readJson();
  if (service.definition.container !== true && service.container === undefined) {
    throw new ClocheError(
      "invalid_argument",
      `service "${name}" runs in no container; use POST /v1/exec for programs of the sandbox`,
    );
  }
  const cmd = requiredCommand(body, "cmd");
  const timeoutSeconds = optionalInteger(body, "timeout_secs", 1, timeoutSecondsMax);
  const { container } = service;
  if (container === undefined) {
    throw new ClocheError("failed_precondition", `service "${name}" is not running; start it first`, {
      reason: "not_running",
    });
  }
  const { guest, env, user, workingDir } = container;
  const command = {
    cmd,
    env,
    dir: workingDir,
    user: user === "" ? undefined : user,
    timeoutMs: timeoutSeconds === undefined ? undefined : timeoutSeconds * 1000,
  };
  const { stdout, stderr, end } = await parts.running.track(execIdOf(exchange), (aborted) =>
    collectCommand({ guest: () => guest, processes: parts.processes }, command, aborted, () =>
      hasDeparted(exchange),
    ),
  );
  return {
    stdout: stdout.toString("utf8"),
    stderr: stderr.toString("utf8"),
    exit_code: end.exitCode,
    timed_out: end.timedOut,
    ...(end.outOfMemory ? { out_of_memory: true } : {}),
    ...(stdout.truncated ? { stdout_truncated: true } : {}),
    ...(stderr.truncated ? { stderr_truncated: true } : {}),
  };
}
