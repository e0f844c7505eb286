export { countdown } from "../commands/countdown.ts";
export { programEnvironment } from "../commands/environment.ts";
export { launchCommand } from "../commands/run-command.ts";
export { RunningExecs } from "./running-execs.ts";
export { collectCommand, execIdOf, execRoutes } from "./routes.ts";
