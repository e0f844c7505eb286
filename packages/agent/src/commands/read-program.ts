import { ClocheError, limits } from "@cloche/protocol";
import {
  type JsonObject,
  optionalEnvironment,
  optionalInteger,
  optionalString,
  requiredCommand,
} from "../http/fields.ts";
import { programEnvironment } from "./environment.ts";
import type { Command } from "./run-command.ts";

/** Reads the command from the body of an exec or a process. Throws `invalid_argument` naming the field. */
export function readProgram(body: JsonObject, sandboxEnv: Readonly<Record<string, string>>): Command {
  const cmd = requiredCommand(body, "cmd");
  if (cmd.length > limits.execArguments) {
    throw new ClocheError("invalid_argument", `cmd must not have more than ${limits.execArguments} strings`);
  }
  const long = cmd.findIndex((argument) => Buffer.byteLength(argument) >= limits.execArgumentBytes);
  if (long >= 0) {
    throw new ClocheError(
      "invalid_argument",
      `cmd[${long}] must be shorter than ${limits.execArgumentBytes} bytes; pass long text in stdin`,
    );
  }
  const dir = optionalString(body, "dir");
  if (dir === "") throw new ClocheError("invalid_argument", "dir must not be empty");
  const user = optionalString(body, "user");
  if (user === "") throw new ClocheError("invalid_argument", "user must not be empty");
  return {
    cmd,
    dir,
    user,
    env: programEnvironment(sandboxEnv, optionalEnvironment(body, "env")),
    timeoutMs: optionalInteger(body, "timeout_ms", 1, Number.MAX_SAFE_INTEGER),
  };
}
