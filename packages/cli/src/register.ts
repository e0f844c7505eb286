import type { Cloche, Sandbox } from "@cloche/sdk";
import type { Command } from "commander";
import { findSandbox } from "./find-sandbox.ts";
import type { Terminal } from "./terminal.ts";

/** The context of an action. */
export interface Run {
  terminal: Terminal;
  json: boolean;
  signal: AbortSignal;
  cloche: Cloche;
  /** Finds a sandbox by name, id or beginning of an id. */
  sandbox(nameOrId: string): Promise<Sandbox>;
}

/** Adds commands to the program. `act` wraps an action: it connects first, and sets the exit code that the action answers. */
export interface Registry {
  program: Command;
  terminal: Terminal;
  setExitCode(code: number): void;
}

/** An action that uses the service; answers an exit code, or nothing for 0. */
export function act<Args extends unknown[]>(
  registry: Registry,
  action: (run: Run, ...args: Args) => Promise<number | void>,
): (...args: [...Args, ...unknown[]]) => Promise<void> {
  return async (...args) => {
    const { terminal, program } = registry;
    const cloche = await terminal.connect();
    const { signal } = terminal;
    const run: Run = {
      terminal,
      json: program.opts<{ json?: boolean }>().json === true,
      signal,
      cloche,
      sandbox: (nameOrId) => findSandbox(cloche, nameOrId, signal),
    };
    try {
      const code = await action(run, ...(args as unknown as Args));
      if (code !== undefined) registry.setExitCode(code);
    } finally {
      await cloche.close();
    }
  };
}
