export { run } from "./program.ts";
export { exitCodes } from "./exit-codes.ts";
