/** What set-up needs of the host: the artifacts it builds once per machine. */
export { SetupError } from "./artifacts/step.ts";
