// What a sandbox says of itself (error_message) that was started from its disk although it ran, or was suspended, before: what is
// lost, why, and what was started again. The words stand in its record from the moment its memory is given up.
import { isServiceName } from "@cloche/protocol";

/** `reason`: public words, without a period. */
export const withoutMemory = (reason: string): string =>
  `started from its disk, without its memory: ${reason}`;

const NAMES_MOST = 10;

/** The same, once it runs. `services`: as its agent told, whose words are not trusted; those that ran before, started now or not. */
export function withServices(words: string, services: { started: unknown; failed: unknown }): string {
  const [started, failed] = [namesIn(services.started), namesIn(services.failed)];
  const failures = failed.length === 0 ? "" : `; services that could not be started: ${list(failed)}`;
  return `${words}; services started: ${started.length === 0 ? "none" : list(started)}${failures}`;
}

const namesIn = (told: unknown): string[] =>
  Array.isArray(told)
    ? told.filter((name): name is string => typeof name === "string" && isServiceName(name))
    : [];

function list(names: string[]): string {
  const more = names.length > NAMES_MOST ? ` and ${names.length - NAMES_MOST} more` : "";
  return names.slice(0, NAMES_MOST).join(", ") + more;
}
