export type * from "./types.ts";
export type * from "./file-types.ts";
export { GuestFileError, SpawnError } from "./errors.ts";
export { NativeSpawner } from "./native-spawner.ts";
export { limitProcfs } from "./procfs.ts";
export { ownChunkBytes, ownFromBytes } from "./own-files.ts";
