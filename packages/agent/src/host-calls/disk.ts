/**
 * The sandbox's disk under the living agent: who uses it, in which order they take it and let it go.
 *
 *     detached ──attach──▶ attached ──detach──▶ detached
 *                             │ the store is opened on first use; services are read at attach
 *
 * While it is not attached the data plane answers 503. Called by host-calls/guest-service.ts alone, one call at a time.
 */
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { ClocheError } from "@cloche/protocol";
import type { Spawner } from "../spawner/index.ts";
import type { Store } from "../store/store.ts";
import { growDisk, mountDisk, unmountDisk } from "./block-device.ts";

/** What the disk's life cycle asks of the supervisor. */
export interface DiskServices {
  /** Reads definitions and desired state from the disk. */
  load(): void;
  /** Ends every service at once without changing what the disk says should run; answers the names of those that ran. */
  halt(): Promise<string[]>;
  /** Ends every service the gentle way (SIGTERM first), needs last, without changing what should run. */
  shutDown(): Promise<void>;
  /** Forgets everything read from the disk. */
  unload(): Promise<void>;
  /** Writes back what is buffered (logs, records). */
  flush(): Promise<void>;
  running(): string[];
  /** Those that are being pulled, start, run or wait to be started again. */
  active(): string[];
  /** Those that the disk says should run. */
  wanted(): string[];
  /** Starts them in dependency order; each name ends in one of the lists. */
  startAll(names: readonly string[]): Promise<{ started: string[]; failed: string[] }>;
}

export class SandboxDisk {
  readonly #path: string;
  readonly #guestProgram: string;
  readonly #spawner: Spawner;
  readonly #store: Store;
  readonly #services: DiskServices;
  #attached = false;
  #mounted = false;
  /** Processes that users may run at once; undefined: the spawner's default. Taken up by the next attach. */
  maxProcesses: number | undefined;

  /** `guestProgram`: the native program, for what a disk in a VM needs. */
  constructor(path: string, guestProgram: string, spawner: Spawner, store: Store, services: DiskServices) {
    this.#path = path;
    this.#guestProgram = guestProgram;
    this.#spawner = spawner;
    this.#store = store;
    this.#services = services;
  }

  get attached(): boolean {
    return this.#attached;
  }

  /** Throws `unavailable` unless the disk is there: the gate of every data plane route. */
  require(): void {
    if (this.#attached) return;
    throw new ClocheError("unavailable", "the sandbox's disk is not attached just now; try again shortly", {
      retryAfterSeconds: 1,
    });
  }

  /** Takes the disk; does nothing when it is attached. `blockDevice` is mounted first (VM). Undoes itself when it fails. */
  async attach(blockDevice: string): Promise<void> {
    if (this.#attached) return;
    if (blockDevice !== "") {
      await mountDisk(blockDevice, this.#path);
      this.#mounted = true;
    }
    try {
      if (blockDevice !== "") await growDisk(this.#guestProgram, blockDevice, this.#path);
      mkdirSync(join(this.#path, "cloche"), { recursive: true, mode: 0o700 });
      const { maxProcesses } = this;
      const guest = this.#spawner.attach(this.#path, maxProcesses === undefined ? {} : { maxProcesses });
      guest.catch(() => undefined); // awaited below, whatever is thrown before
      try {
        // Read by us, while the guest starts.
        this.#services.load();
        this.#store.ready();
      } finally {
        await guest;
      }
    } catch (error) {
      await this.#spawner.detach();
      await this.#services.unload();
      this.#store.close();
      await this.#unmount();
      throw error;
    }
    this.#attached = true;
  }

  /** Lets the disk go: when it resolves nothing of ours or the users' holds it. Answers the services that ran. */
  async detach(): Promise<string[]> {
    if (!this.#attached) return [];
    this.#attached = false;
    const ran = await this.#services.halt();
    await this.#spawner.detach();
    await this.#services.unload();
    this.#store.close();
    await this.#unmount();
    return ran;
  }

  /**
   * Everything answered so far is in the file system's files; where the file system is the guest's own, on the device too.
   * What gVisor mounts is the host's, and it keeps nothing of it back: there the host writes it out.
   */
  async flush(): Promise<void> {
    await this.#services.flush();
    this.#store.flush();
    if (this.#mounted) await this.#spawner.guest.files.sync();
  }

  async #unmount(): Promise<void> {
    if (!this.#mounted) return;
    await unmountDisk(this.#path);
    this.#mounted = false;
  }
}
