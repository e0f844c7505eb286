export { programEnvironment } from "./environment.ts";
export { RunningExecs } from "./running-execs.ts";
export { collectCommand, execIdOf, execRoutes } from "./routes.ts";
