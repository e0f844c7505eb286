export { programEnvironment } from "./environment.ts";
export { type Command, type CommandEnd, runCommand } from "./run-command.ts";
export { RunningExecs } from "./running-execs.ts";
export { collectCommand, execIdOf, type ExecParts, execRoutes } from "./routes.ts";
