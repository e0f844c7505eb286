export { countdown } from "./countdown.ts";
export { programEnvironment } from "./environment.ts";
export { launchCommand } from "./run-command.ts";
export { RunningExecs } from "./running-execs.ts";
export { collectCommand, execIdOf, execRoutes } from "./routes.ts";
