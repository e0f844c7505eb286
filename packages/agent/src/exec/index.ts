export { programEnvironment } from "./environment.ts";
export { RunningExecs } from "./running-execs.ts";
export { collectCommand, execIdOf, type ExecParts, execRoutes } from "./routes.ts";
