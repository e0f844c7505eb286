import { constants } from "node:os";
import type { ProcessInfo } from "@cloche/sdk";
import { E2bError } from "../e2b-error.ts";
import type { Fields } from "../http.ts";

/** Go's names of the usual signals that end programs. */
const descriptions: Record<string, string> = {
  SIGHUP: "hangup",
  SIGINT: "interrupt",
  SIGQUIT: "quit",
  SIGABRT: "aborted",
  SIGKILL: "killed",
  SIGSEGV: "segmentation fault",
  SIGPIPE: "broken pipe",
  SIGTERM: "terminated",
};

/** The end of a process in envd's format: no exit code after a signal; an error after the time limit. */
export function endOf({ exit_code, signal, timed_out, ended_by }: ProcessInfo): Fields {
  if (timed_out)
    throw new E2bError("deadline_exceeded", "the command ran longer than its time limit and was killed");
  if (signal !== null) {
    const status = `signal: ${descriptions[signal] ?? signalNumber(signal)}`;
    return {
      exitCode: -1,
      exited: false,
      status,
      error: ended_by === "out_of_memory" ? "out of memory" : status,
    };
  }
  const status = `exit status ${exit_code ?? 0}`;
  return { exitCode: exit_code ?? 0, exited: true, status, ...(exit_code !== 0 && { error: status }) };
}

const signalNumber = (name: string): string =>
  `signal ${(constants.signals as Record<string, number>)[name] ?? name}`;
