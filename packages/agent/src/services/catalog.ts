/**
 * Service definitions and what should run, on the sandbox's disk (spec/contract.md, services): one folder a service in
 * `cloche/services`, with `service.json` replaced atomically and the log beside it. Checkpoints, forks and restores carry it.
 */
import { readdirSync, readFileSync, rmSync } from "node:fs";
import { mkdir, open, rename } from "node:fs/promises";
import { join } from "node:path";
import { ClocheError, isServiceName, type ServiceDefinition } from "@cloche/protocol";
import type { JsonObject } from "../http/fields.ts";
import type { Log } from "../log.ts";
import { readDefinition } from "./definition.ts";

/** What of a service outlives the agent. */
export interface ServiceFile {
  definition: ServiceDefinition;
  /** It was started and has neither been stopped nor ended by itself: a cold start brings it back. */
  wanted: boolean;
  /** How it ended the last time. */
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

  /** Everything on the disk. What cannot be read is left out and logged: one damaged file must not hide the others. */
  load(): Map<string, ServiceFile> {
    this.#open = true;
    const services = new Map<string, ServiceFile>();
    let names: string[] = [];
    try {
      names = readdirSync(this.#folder).filter(isServiceName);
    } catch {
      // No service was ever defined.
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

  /** Resolves when the file is durable. Throws 507 where the disk is full, 503 where it was let go. */
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

  /** Writes nothing more until `load`: the disk goes. */
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

/** Off the event loop: a flush takes many milliseconds, in which the agent would start and answer nothing. */
async function syncFolder(path: string): Promise<void> {
  const folder = await open(path, "r");
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}

/** What the file system threw, as the public error. */
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
