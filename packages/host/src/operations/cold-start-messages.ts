/**
 * The error_message of a sandbox that was started from its disk and lost its memory: what is lost, why, and which services
 * were started again. The record has this message from the moment the memory is given up.
 */
import { isServiceName } from "@cloche/protocol";

/** `reason`: public message, without a period. */
export const withoutMemory = (reason: string): string =>
  `started from its disk, without its memory: ${reason}`;

const namesMost = 10;

/** The same message once the sandbox runs. `services`: as its agent reports them, not trusted: started now, and failed to start. */
export function withServices(message: string, services: { started: unknown; failed: unknown }): string {
  const [started, failed] = [namesIn(services.started), namesIn(services.failed)];
  const failures = failed.length === 0 ? "" : `; services that could not be started: ${list(failed)}`;
  return `${message}; services started: ${started.length === 0 ? "none" : list(started)}${failures}`;
}

const namesIn = (reported: unknown): string[] =>
  Array.isArray(reported)
    ? reported.filter((name): name is string => typeof name === "string" && isServiceName(name))
    : [];

function list(names: string[]): string {
  const more = names.length > namesMost ? ` and ${names.length - namesMost} more` : "";
  return names.slice(0, namesMost).join(", ") + more;
}
