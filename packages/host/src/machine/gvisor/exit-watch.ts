// Tells when the sandbox that a machine runs in has ended, by itself or because it was killed: its keeper writes a file then.
//
// Owns a watcher of each unit's directory, from `watch` until it ended or `unwatch`.
import { type FSWatcher, watch } from "node:fs";
import type { Unit } from "./unit.ts";

export class ExitWatch {
  readonly #watchers = new Map<string, FSWatcher>();
  readonly #listeners: ((id: string, reason: string) => void)[] = [];

  onExit(listener: (id: string, reason: string) => void): void {
    this.#listeners.push(listener);
  }

  watch(unit: Unit, id: string): void {
    this.unwatch(id);
    const report = (): void => {
      if (!this.#watchers.has(id)) return;
      this.unwatch(id);
      void unit.exitReason().then((reason) => {
        for (const listener of this.#listeners) listener(id, reason);
      });
    };
    const watcher = watch(unit.directory, { persistent: false }, (_event, name) => {
      if (name === "exit") report();
    });
    this.#watchers.set(id, watcher);
    // It may have ended before we watched.
    void unit.isAlive().then((alive) => alive || report());
  }

  unwatch(id: string): void {
    this.#watchers.get(id)?.close();
    this.#watchers.delete(id);
  }

  close(): void {
    for (const id of this.#watchers.keys()) this.unwatch(id);
  }
}
