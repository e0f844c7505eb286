/**
 * Service definitions and desired states on the sandbox's disk (spec/contract.md, services). Each service has a folder in
 * `cloche/services` with its log and a `service.json`, which is replaced atomically. Checkpoints, forks and restores include them.
 */
import { readdirSync, readFileSync, rmSync } from "node:fs";
import { mkdir, open, rename } from "node:fs/promises";
import { join } from "node:path";
import { ClocheError, isServiceName, type ServiceDefinition } from "@cloche/protocol";
import type { JsonObject } from "../http/fields.ts";
import type { Log } from "../log.ts";
import { readDefinition } from "./definition.ts";

/** The state of a service that survives the agent. */
export interface ServiceFile {
  definition: ServiceDefinition;
  /** The desired state: true after a start, until it is stopped or ends by itself. A cold start starts it again. */
  wanted: boolean;
  /** Whether its last end was a failure. */
  failed: boolean;
  exitCode: number | null;
  error: string;
}

export class Catalog {
  readonly #folder: string;
  readonly #log: Log;
  /** Writes of a service follow one another. */
  readonly #writes = new Map<string, Promise<void>>();
  #open = false;

  constructor(folder: string, log: Log) {
    this.#folder = folder;
    this.#log = log;
  }

  logFolder(name: string): string {
    return join(this.#folder, name, "log");
  }

  /** Reads all services from the disk. An unreadable file is skipped and logged: it must not hide the other services. */
  load(): Map<string, ServiceFile> {
    this.#open = true;
    const services = new Map<string, ServiceFile>();
    let names: string[] = [];
    try {
      names = readdirSync(this.#folder).filter(isServiceName);
    } catch {
      // No service has been defined yet.
    }
    for (const name of names.sort()) {
      try {
        services.set(name, parseFile(readFileSync(this.#path(name), "utf8")));
      } catch (error) {
        this.#log.warn("a service's file cannot be read", { service: name, error });
      }
    }
    return services;
  }

  /** Resolves when the file is durable. Throws 507 if the disk is full, 503 if it is detached. */
  save(name: string, file: ServiceFile): Promise<void> {
    if (!this.#open) {
      return Promise.reject(
        new ClocheError("unavailable", "the sandbox's disk is not attached just now", {
          retryAfterSeconds: 1,
        }),
      );
    }
    const text = JSON.stringify(file);
    const before = this.#writes.get(name) ?? Promise.resolve();
    const write = before.catch(() => undefined).then(() => this.#replace(name, text));
    const settled = write
      .catch(() => undefined)
      .then(() => {
        if (this.#writes.get(name) === settled) this.#writes.delete(name);
      });
    this.#writes.set(name, settled);
    return write;
  }

  /** Removes the definition and the log. */
  async remove(name: string): Promise<void> {
    await this.#writes.get(name);
    rmSync(join(this.#folder, name), { recursive: true, force: true });
    await syncFolder(this.#folder);
  }

  /** Resolves when every write begun so far has ended. */
  async flush(): Promise<void> {
    await Promise.all(this.#writes.values());
  }

  /** Before the disk is detached: writes nothing more until `load`. */
  async close(): Promise<void> {
    this.#open = false;
    await this.flush();
  }

  async #replace(name: string, text: string): Promise<void> {
    try {
      await mkdir(join(this.#folder, name), { recursive: true, mode: 0o700 });
      const draft = `${this.#path(name)}.new`;
      const file = await open(draft, "w", 0o600);
      try {
        await file.writeFile(text);
        await file.datasync();
      } finally {
        await file.close();
      }
      await rename(draft, this.#path(name));
      await syncFolder(join(this.#folder, name));
    } catch (error) {
      throw diskError(error);
    }
  }

  #path(name: string): string {
    return join(this.#folder, name, "service.json");
  }
}

function parseFile(text: string): ServiceFile {
  const raw = JSON.parse(text) as JsonObject;
  return {
    definition: readDefinition(raw["definition"] as JsonObject),
    wanted: raw["wanted"] === true,
    failed: raw["failed"] === true,
    exitCode: typeof raw["exitCode"] === "number" ? raw["exitCode"] : null,
    error: typeof raw["error"] === "string" ? raw["error"] : "",
  };
}

/** Asynchronous, because a flush takes many milliseconds in which the agent must still answer. */
async function syncFolder(path: string): Promise<void> {
  const folder = await open(path, "r");
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}

/** Turns a file system error into the public error. */
export function diskError(thrown: unknown): ClocheError {
  if (thrown instanceof ClocheError) return thrown;
  const { code } = thrown as NodeJS.ErrnoException;
  if (code === "ENOSPC" || code === "EDQUOT") {
    return new ClocheError("resource_exhausted", "the sandbox's disk is full", {
      resource: "disk",
      cause: thrown,
    });
  }
  return new ClocheError("internal", "the sandbox's disk did not take the data", { cause: thrown });
}
