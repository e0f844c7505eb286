/**
 * A spawner for tests on plain Linux: the same interface, without isolation. Processes are children of the test in their
 * own process group; the tree of a process is that group.
 */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { constants } from "node:os";
import { dirname, join } from "node:path";
import {
  type Guest,
  type GuestEntry,
  type GuestFiles,
  type GuestOptions,
  type GuestProcess,
  type ProcessExit,
  type SignalScope,
  SpawnError,
  type Spawner,
  type SpawnRequest,
} from "../spawner/index.ts";

export function localSpawner(): Spawner & { guests: LocalGuest[] } {
  const containers = new Map<string, LocalGuest>();
  let guest: LocalGuest | undefined;
  const guests: LocalGuest[] = [];
  return {
    guests,
    attach: async (diskPath) => {
      mkdirSync(join(diskPath, "fs"), { recursive: true });
      guest = new LocalGuest(join(diskPath, "fs"));
      guests.push(guest);
    },
    detach: async () => {
      await Promise.all([...containers.values(), guest].map((one) => one?.close()));
      containers.clear();
      guest = undefined;
    },
    expectAttach: () => undefined,
    get guest() {
      if (guest === undefined) throw new Error("detached");
      return guest;
    },
    openContainer: async (id: string, options: GuestOptions) => {
      const container = new LocalGuest(options.root);
      containers.set(id, container);
      void container.closed.then(() => containers.delete(id));
      return container;
    },
    container: (id) => containers.get(id),
    onLost: () => undefined,
    onOutOfMemory: () => undefined,
  };
}

export class LocalGuest implements Guest {
  readonly #root: string;
  readonly #running = new Set<GuestProcess>();
  readonly #closed = Promise.withResolvers<void>();

  constructor(root: string) {
    this.#root = root;
  }

  get closed(): Promise<void> {
    return this.#closed.promise;
  }

  get runningCount(): number {
    return this.#running.size;
  }

  async settle(): Promise<void> {}

  async close(): Promise<void> {
    await Promise.all([...this.#running].map((process) => process.kill()));
    this.#closed.resolve();
  }

  launch(request: SpawnRequest, onStarted?: () => void): GuestProcess {
    const spawned = this.spawn(request);
    let running: GuestProcess | undefined;
    spawned.then(
      (process) => {
        running = process;
        onStarted?.();
      },
      () => undefined,
    );
    const exited = spawned.then((process) => process.exited);
    const ended = spawned.then((process) => process.ended);
    for (const promise of [exited, ended]) promise.catch(() => undefined);
    return {
      get pid() {
        return running?.pid ?? 0;
      },
      outOfMemory: false,
      exited,
      ended,
      write: async (data) => (await spawned).write(data),
      end: () => void spawned.then((process) => process.end()),
      signal: (signal, scope) => void spawned.then((process) => process.signal(signal, scope)),
      kill: async () => (await spawned).kill(),
      tree: () => running?.tree() ?? [],
      resize: () => undefined,
      findPid: async () => (await spawned).pid,
    };
  }

  async renew(): Promise<void> {}

  archive(): never {
    throw new Error("the double has no archives");
  }

  async spawn(request: SpawnRequest): Promise<GuestProcess> {
    const [program = "", ...args] = request.argv;
    const child = spawn(program, args, {
      cwd: request.cwd ?? "/",
      env: { ...request.env },
      detached: true,
      stdio: [request.stdin === "pipe" ? "pipe" : "ignore", "pipe", "pipe"],
    });
    const closed = once(child, "close").then(([code, signal]: unknown[]): ProcessExit => {
      const number = typeof signal === "string" ? constants.signals[signal as NodeJS.Signals] : null;
      return { code: number === null ? Number(code) : 128 + number, signal: number };
    });
    closed.catch(() => undefined);
    try {
      await once(child, "spawn");
    } catch (error) {
      const { errno = 0 } = error as NodeJS.ErrnoException;
      throw new SpawnError("exec", Math.abs(errno), ""); // no interpreter to name
    }
    for (const stream of ["stdout", "stderr"] as const) {
      child[stream]?.on("data", (chunk: Buffer) => {
        child[stream]?.pause();
        const name = request.mergeOutput === true ? "stdout" : stream;
        void Promise.resolve(request.onOutput?.(name, chunk)).finally(() => child[stream]?.resume());
      });
    }
    child.stdin?.on("error", () => undefined); // the reader is gone
    const pid = child.pid ?? 0;
    const send = (signal: number, scope: SignalScope): void => {
      try {
        process.kill(scope === "program" ? pid : -pid, signal);
      } catch {
        // The process has ended.
      }
    };
    const running: GuestProcess = {
      outOfMemory: false,
      pid,
      exited: closed,
      ended: closed.then(() => undefined),
      write: async (data) => {
        const { promise, resolve } = Promise.withResolvers<void>();
        if (child.stdin?.write(data, () => resolve()) === undefined) resolve();
        return promise;
      },
      end: () => void child.stdin?.end(),
      signal: send,
      kill: async () => {
        send(9, "tree");
        await closed;
      },
      tree: () => inGroup(pid),
      resize: () => undefined,
      findPid: async () => pid,
    };
    this.#running.add(running);
    void closed.finally(() => this.#running.delete(running));
    return running;
  }

  get files(): GuestFiles {
    const refuse = async (): Promise<never> => {
      throw new Error("not in the local spawner");
    };
    const write: GuestFiles["write"] = async (path, data, mode) => {
      const target = join(this.#root, path.toString());
      mkdirSync(dirname(target), { recursive: true });
      const bytes = Buffer.isBuffer(data) ? data : Buffer.concat(data);
      writeFileSync(target, bytes, { mode: mode ?? 0o644 });
      const entry: GuestEntry = {
        path: Buffer.from(path),
        kind: "file",
        sizeBytes: bytes.length,
        modifiedAtMs: statSync(target).mtimeMs,
        mode: mode ?? 0o644,
        owner: "root",
        group: "root",
        symlinkTarget: Buffer.alloc(0),
        attributes: [],
      };
      return entry;
    };
    const files: GuestFiles = {
      lstat: refuse,
      stat: refuse,
      as: () => files,
      upload: refuse,
      copy: refuse,
      chmod: refuse,
      chown: refuse,
      watch: refuse,
      open: refuse,
      write,
      put: async (path, data, mode) => void (await write(path, data, mode)),
      together: (ask) => ask(),
      remove: refuse,
      list: refuse,
      mkdir: refuse,
      move: refuse,
      sync: async () => undefined,
      // Without isolation this would rename the machine that the tests run on.
      setHostname: async () => undefined,
      setBootId: async () => undefined,
    };
    return files;
  }
}

/** Pids of a process group. */
function inGroup(group: number): number[] {
  return readdirSync("/proc").flatMap((name) => {
    try {
      const stat = readFileSync(`/proc/${name}/stat`, "latin1");
      return Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[2]) === group ? [Number(name)] : [];
    } catch {
      return [];
    }
  });
}
