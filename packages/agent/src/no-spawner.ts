import { ClocheError } from "@cloche/protocol";
import type { Guest, Spawner } from "./spawner/index.ts";

/** Stands in until the native spawner lands: a disk can be attached, and nothing can run on it. */
export function noSpawner(): Spawner {
  const refuse = (): never => {
    throw new ClocheError("unimplemented", "this agent was built without its spawner");
  };
  const files = {
    lstat: refuse,
    open: refuse,
    write: async () => refuse(),
    remove: refuse,
    list: refuse,
    mkdir: refuse,
    move: refuse,
    sync: async () => undefined,
  };
  const guest: Guest = {
    spawn: async () => refuse(),
    launch: refuse,
    archive: refuse,
    files,
    closed: new Promise(() => undefined),
    close: async () => undefined,
  };
  return {
    attach: async () => undefined,
    detach: async () => undefined,
    guest,
    openContainer: async () => refuse(),
    container: () => undefined,
    onLost: () => undefined,
  };
}
