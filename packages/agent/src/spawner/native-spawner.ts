import { ClocheError } from "@cloche/protocol";
import { type MemoryDeath, NativeGuest } from "./native-guest.ts";
import type { Guest, GuestOptions, KilledForMemory, LostListener, Spawner } from "./types.ts";

/** Delay before a guest whose pid 1 ended is started again. It doubles after each failure, up to the second figure. */
const restartDelayMs = 100;
const restartDelayMaxMs = 10_000;

/** The spawner that uses the native guest program; `Spawner` in types.ts has the states. */
export class NativeSpawner implements Spawner {
  readonly #binary: string;
  readonly #options: Omit<GuestOptions, "root">;
  readonly #containers = new Map<string, NativeGuest>();
  readonly #listeners: LostListener[] = [];
  readonly #memoryListeners: ((killed: KilledForMemory) => void)[] = [];
  #guest: NativeGuest | undefined;
  /** A process started ahead for the next attach. */
  #waiting: NativeGuest | undefined;
  #root: string | undefined;
  #limits: Pick<GuestOptions, "maxProcesses"> = {};
  /** Containers that are open or about to be. */
  #containerCount = 0;
  /** Counts attaches and detaches: a guest started for an earlier one is closed again. */
  #epoch = 0;

  /** `binary`: the guest program (packages/agent/build-native.ts). `options`: of the users' guest; `userNamespace` also of containers. */
  constructor(binary: string, options: Omit<GuestOptions, "root"> = {}) {
    this.#binary = binary;
    this.#options = options;
  }

  get guest(): Guest {
    if (!this.#guest) {
      const why =
        this.#root === undefined
          ? "the sandbox's disk is not attached"
          : "all processes of the sandbox ended and are being started again";
      throw new ClocheError("unavailable", `${why}; try again`, { retryAfterSeconds: 1 });
    }
    return this.#guest;
  }

  async attach(diskPath: string, options: Pick<GuestOptions, "maxProcesses"> = {}): Promise<void> {
    if (this.#root !== undefined)
      throw new ClocheError("failed_precondition", "a disk is attached already; detach it first");
    this.#root = `${diskPath}/fs`;
    this.#limits = options;
    this.#epoch += 1;
    try {
      await this.#start(this.#root, this.#epoch);
    } catch (error) {
      this.#root = undefined;
      throw error;
    }
  }

  async detach(): Promise<void> {
    this.#epoch += 1;
    this.#root = undefined;
    const [containers, guest] = [[...this.#containers.values()], this.#guest];
    this.#containers.clear();
    this.#guest = undefined;
    // The users' guest removes the cgroup of all, which is empty then.
    await Promise.all(containers.map((one) => one.close()));
    await guest?.close();
  }

  expectAttach(): void {
    if (this.#waiting !== undefined) return;
    const waiting = NativeGuest.waiting(this.#binary);
    this.#waiting = waiting;
    void waiting.closed.then(() => {
      if (this.#waiting === waiting) this.#waiting = undefined;
    });
  }

  async openContainer(id: string, options: GuestOptions): Promise<Guest> {
    const epoch = this.#epoch;
    const { userNamespace = false } = this.#options;
    if (this.#root === undefined) return this.guest;
    if (this.#containers.has(id)) throw new ClocheError("already_exists", `container ${id} is open already`);
    this.#countContainers(1);
    const shared = { ...this.#limits, userNamespace, container: true };
    const starting = NativeGuest.start(this.#binary, { ...shared, ...options });
    void starting.then(
      ({ closed }) => closed.then(() => this.#countContainers(-1)),
      () => this.#countContainers(-1),
    );
    const guest = await starting;
    if (this.#epoch !== epoch || this.#containers.has(id)) {
      await guest.close();
      throw new ClocheError("aborted", `container ${id}: the disk was swapped while it started`);
    }
    this.#containers.set(id, guest);
    void guest.closed.then(() => {
      if (this.#containers.get(id) !== guest) return;
      this.#containers.delete(id);
      this.#notify(id, guest.cause);
    });
    return guest;
  }

  #countContainers(more: number): void {
    this.#containerCount += more;
    this.#guest?.countContainers(this.#containerCount);
  }

  container(id: string): Guest | undefined {
    return this.#containers.get(id);
  }

  onLost(listener: LostListener): void {
    this.#listeners.push(listener);
  }

  onOutOfMemory(listener: (killed: KilledForMemory) => void): void {
    this.#memoryListeners.push(listener);
  }

  async #start(root: string, epoch: number): Promise<void> {
    const guest = await this.#open({ ...this.#options, ...this.#limits, root });
    if (this.#epoch !== epoch) return guest.close();
    this.#guest = guest;
    guest.onOutOfMemory = (death) => this.#killed(death);
    if (this.#containerCount > 0) guest.countContainers(this.#containerCount);
    void guest.closed.then(() => {
      if (this.#guest !== guest) return;
      this.#guest = undefined;
      this.#notify(null, guest.cause);
      this.#restart(root, epoch, restartDelayMs);
    });
    return undefined;
  }

  async #open(options: GuestOptions): Promise<NativeGuest> {
    const waiting = this.#waiting;
    this.#waiting = undefined;
    if (waiting !== undefined) {
      try {
        await waiting.enter(options);
        return waiting;
      } catch {
        // The waiting process may have ended. A fault of the disk is reported by the next attempt.
      }
    }
    return NativeGuest.start(this.#binary, options);
  }

  #killed(death: MemoryDeath): void {
    for (const guest of [this.#guest, ...this.#containers.values()])
      if (guest?.pid === death.guestPid) guest.noteOutOfMemory(death.execId);
    for (const listener of this.#memoryListeners) listener(death);
  }

  #restart(root: string, epoch: number, delayMs: number): void {
    setTimeout(() => {
      if (this.#epoch !== epoch) return;
      this.#start(root, epoch).catch((error: Error) => {
        this.#notify(null, new Error("its guest could not be started again", { cause: error }));
        this.#restart(root, epoch, Math.min(delayMs * 2, restartDelayMaxMs));
      });
    }, delayMs);
  }

  #notify(container: string | null, cause = new Error("its guest ended")): void {
    for (const listener of this.#listeners) listener(container, cause);
  }
}
