/**
 * Attaches and detaches the sandbox's disk under the running agent: guest, store and services, in order.
 *
 *     detached ──attach──▶ attached ──detach──▶ detached
 *                             │ the store is opened on first use; services are read at attach
 *
 * While it is not attached the data plane answers 503. Called by control/guest-service.ts alone, one call at a time.
 */
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { ClocheError } from "@cloche/protocol";
import type { Spawner } from "../spawner/index.ts";
import type { Store } from "../store/store.ts";
import { growDisk, mountDisk, unmountDisk } from "./block-device.ts";

/** The functions of the supervisor that attach and detach use. */
export interface DiskServices {
  /** Reads definitions and desired state from the disk. */
  load(): void;
  /** Ends every service at once without changing the desired state on the disk; answers the names of those that ran. */
  halt(): Promise<string[]>;
  /** Ends every service gracefully (SIGTERM first), needs last, without changing the desired state. */
  shutDown(): Promise<void>;
  /** Forgets everything read from the disk. */
  unload(): Promise<void>;
  /** Writes buffered logs and records to the disk. */
  flush(): Promise<void>;
  running(): string[];
  /** Services that pull, start, run or wait for a restart. */
  active(): string[];
  /** Services whose desired state on the disk is running. */
  wanted(): string[];
  /**
   * Starts them in dependency order; each name ends in one of the lists. One that still starts after `limits.servicesStartedTogetherMs` is
   * answered as failed, and goes on.
   */
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
  /** Processes that users may run at once; undefined: the spawner's default. Takes effect at the next attach. */
  maxProcesses: number | undefined;

  /** `guestProgram`: the native program, which grows a VM's disk. */
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

  /** Throws `unavailable` unless the disk is attached; every data plane route calls this. */
  require(): void {
    if (this.#attached) return;
    throw new ClocheError("unavailable", "the sandbox's disk is not attached just now; try again shortly", {
      retryAfterSeconds: 1,
    });
  }

  /** Attaches the disk; does nothing if it is attached. `blockDevice` is mounted first (VM). A failure is undone. */
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
      guest.catch(() => undefined); // awaited below, unless another error is thrown before
      try {
        // The agent reads definitions while the guest starts.
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

  /** Detaches the disk: when it resolves, no process of the agent or the users holds it. Answers the services that ran. */
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
   * When it resolves, all answered writes are in the file system; in a VM, whose kernel owns the file system, also on the device. In
   * gVisor the host's kernel owns it and gVisor buffers nothing, so the host syncs it.
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
