import { constants } from "node:os";
import { ClocheError } from "@cloche/protocol";
import type { SpawnError } from "../spawner/index.ts";

const { errno } = constants;
const missing: readonly number[] = [errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG];
const tooManyFiles: readonly number[] = [errno.EMFILE, errno.ENFILE];
const exhausted: readonly number[] = [errno.EAGAIN, errno.ENOMEM, ...tooManyFiles];

/** The exit code and the line on stderr that a shell gives for a program that cannot be executed. */
export interface NotExecuted {
  exitCode: 126 | 127;
  message: string;
}

/**
 * Turns a failed spawn into the answer of exec (spec/contract.md, Data plane: exec): 127 for a missing program and 126 for one that
 * cannot be executed. All other failures are thrown, faults of the request as 400.
 */
export function notExecuted(
  error: SpawnError,
  request: { cmd: readonly string[]; dir?: string | undefined; user?: string | undefined },
): NotExecuted {
  const program = request.cmd[0] ?? "";
  switch (error.stage) {
    case "exec":
    case "request":
      if (error.errno === errno.E2BIG) {
        throw new ClocheError(
          "invalid_argument",
          "cmd and env are too large for the system: about 2 MiB together, below 128 KiB each argument and variable",
        );
      }
      if (error.stage === "request") break;
      if (exhausted.includes(error.errno)) throw noRoom(error);
      if (error.errno === errno.ENOENT && error.message !== "") {
        return {
          exitCode: 127,
          message: `${program}: its interpreter or loader ${error.message} does not exist\n`,
        };
      }
      if (missing.includes(error.errno)) {
        const where = program.includes("/") ? "no such file" : "not found on PATH";
        return { exitCode: 127, message: `${program}: ${where}\n` };
      }
      return { exitCode: 126, message: `${program}: ${whyNotExecutable(error.errno)}\n` };
    case "cwd":
      throw new ClocheError("invalid_argument", `dir: ${request.dir} ${whyNotEntered(error.errno)}`);
    case "user":
      if (error.message !== "") {
        throw new ClocheError(
          "invalid_argument",
          `user: there is no such ${error.message} in the sandbox: ${JSON.stringify(request.user)}`,
          { reason: error.message === "user" ? "no_such_user" : "no_such_group" },
        );
      }
      break;
    case "fork":
    case "pty":
      if (exhausted.includes(error.errno)) throw noRoom(error);
      break;
    case "lost":
      throw restarted(error);
  }
  throw new ClocheError("internal", "the command could not be started", { cause: error });
}

/** The error of an exec whose guest ended meanwhile, by itself or for a restore. */
export function restarted(cause?: unknown): ClocheError {
  return new ClocheError("unavailable", "the sandbox's processes were restarted while this command ran", {
    cause,
  });
}

function noRoom(cause: { errno: number }): ClocheError {
  const what = tooManyFiles.includes(cause.errno)
    ? "too many files are open; close some or stop a program"
    : "stop some or give it more memory";
  return new ClocheError("resource_exhausted", `the sandbox cannot run another process now: ${what}`, {
    resource: "quota",
    cause,
  });
}

function whyNotExecutable(number: number): string {
  if (number === errno.ENOEXEC) return "not executable: neither a binary nor a script with a #! line";
  if (number === errno.EACCES) return "not executable: permission denied";
  return `not executable (errno ${number})`;
}

function whyNotEntered(number: number): string {
  if (number === errno.ENOENT) return "does not exist";
  if (number === errno.ENOTDIR) return "is not a directory";
  if (number === errno.EACCES) return "may not be entered by this user";
  return `cannot be entered (errno ${number})`;
}
