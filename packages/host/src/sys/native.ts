/**
 * Client of cloche-sys (native/sys/main.c): kernel operations that Node cannot do, without a spawn for each.
 * Owns one child process, started at the first use and again if it dies. Requests run concurrently in it. In a pod it owns two: the
 * second has the node's mounts, for programs that outlive the pod and for mounts themselves (launch-place.ts).
 *
 *   idle ──first request──▶ running ──child exits──▶ idle (requests under way fail, the next one starts the child again)
 *                              └──close()──▶ closed
 *
 * Nothing needs to survive a crash of the service: the child finishes running operations (no disk stays frozen) and exits.
 */
import { step } from "@cloche/base";
import { type ChildProcessByStdio, spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import type { Readable, Writable } from "node:stream";
import { getSystemErrorName } from "node:util";
import { systemPath } from "@cloche/base/run";
import { besideHost, type Command, type LaunchPlace } from "./launch-place.ts";

/** A failed kernel operation. `errno`: its name, such as EBUSY, ENOSPC, EUCLEAN. Private: it names host paths. */
export class NativeError extends Error {
  override readonly name = "NativeError";
  readonly errno: string;

  constructor(operation: string, errno: string, what: string) {
    super(`${operation}: ${what}: ${errno}`);
    this.errno = errno;
  }
}

interface Pending {
  readonly operation: string;
  readonly resolve: (text: string) => void;
  readonly reject: (error: Error) => void;
  readonly late: NodeJS.Timeout;
}

export interface ExecRequest {
  readonly argv: Command;
  /** The program outlives us, and uses only paths that the computer has too. Default false. */
  readonly outlives?: boolean;
  /** Files to which stdout and stderr are appended; no descriptor of ours is inherited. Default /dev/null. */
  readonly stdoutFile?: string;
  readonly stderrFile?: string;
  readonly cwd?: string;
  /** Path of a network namespace to start in. */
  readonly netns?: string;
  /** The program's process group is killed after this many milliseconds. Default 60,000. */
  readonly deadlineMs?: number;
}

export interface SlotEnd {
  readonly namespace: string;
  readonly interface: string;
  readonly mac: string;
}
export interface RouterEnd extends SlotEnd {
  readonly address: string;
}

/** Key: the interface, followed by the address if there is one. `chain`: the target of a verdict map. */
export interface Element {
  readonly set: string;
  readonly interface: string;
  readonly address?: string;
  readonly chain?: string;
  readonly mark?: number;
  /** First and last; part of the key, behind the address. */
  readonly ports?: readonly [number, number];
  /** Of an element to add: the kernel removes it then. */
  readonly timeoutSeconds?: number;
}
export interface ElementChange extends Element {
  readonly verb: "add" | "delete";
}

/** Most changes of one transaction (native/sys/main.c has a bound of its arguments). */
export const elementsMax = 60;
/** Writing dirty pages takes minutes. A caller must not hang if the kernel never finishes. */
const operationMs = 600_000;
/** Time for a program killed at its deadline to die; then it is no longer waited for. */
const killedMs = 10_000;

export class Native {
  readonly #program: string;
  readonly #place: LaunchPlace;
  /** The client of the second child, for programs that outlive us; undefined: there is only one child. */
  readonly #outliving: Native | undefined;
  #child: ChildProcessByStdio<Writable, Readable, null> | undefined;
  #closed = false;
  #nextId = 1;
  readonly #pending = new Map<string, Pending>();

  /** `program`: the compiled cloche-sys (artifacts/src/programs/programs.ts). `place`: the place where it and its programs run. */
  constructor(program: string, place: LaunchPlace = besideHost) {
    this.#program = program;
    this.#place = place;
    const outliving: LaunchPlace = { ...place, apart: place.outliving, outliving: place.outliving };
    const isOne = place.apart === place.outliving;
    this.#outliving = isOne ? undefined : new Native(program, outliving);
  }

  ping(): Promise<string> {
    return this.#call("ping");
  }

  /** Makes a reflink copy, by default durable when it resolves. Replaces an existing `target` atomically. */
  async clone(source: string, target: string, { durable = true } = {}): Promise<void> {
    await this.#call("clone", source, target, durable ? "1" : "0");
  }

  /** Writes dirty pages of the file system at `mountPoint`, until few are left. */
  async sync(mountPoint: string): Promise<void> {
    await this.#call("sync", mountPoint);
  }

  /** Makes a file and its name durable. */
  async syncFile(path: string): Promise<void> {
    await this.#call("sync-file", path);
  }

  /** Loop-mounts an ext4 image and answers the loop device. Succeeds if already attached there; EBUSY if elsewhere. */
  attach(request: {
    image: string;
    mountPoint: string;
    /** mount(2) flags. */
    flags: number;
    /** ext4 options, comma-separated. */
    options: string;
    directIo: boolean;
  }): Promise<string> {
    const { image, mountPoint, flags, options, directIo } = request;
    return this.#call("attach", image, mountPoint, String(flags), options, directIo ? "1" : "0");
  }

  /** Unmounts; the loop device is then freed by itself. Succeeds if nothing is mounted. `lazy`: completed when the last user ends. */
  async detach(mountPoint: string, options: { lazy?: boolean } = {}): Promise<void> {
    await this.#call("detach", mountPoint, options.lazy ? "1" : "0");
  }

  /** Mounts what is at `from` at `to` instead of what is there, as by a lazy detach; nothing is left at `from`. */
  async replace(from: string, to: string): Promise<void> {
    await this.#call("replace", from, to);
  }

  /** Gives unused blocks back to the disk below; answers the bytes. */
  async trim(mountPoint: string): Promise<number> {
    return Number(await this.#call("trim", mountPoint));
  }

  async extents(file: string): Promise<{ count: number; allocatedBytes: number; exclusiveBytes: number }> {
    const [count, allocated, exclusive] = (await this.#call("extents", file)).split(" ").map(Number);
    return { count: count ?? 0, allocatedBytes: allocated ?? 0, exclusiveBytes: exclusive ?? 0 };
  }

  /**
   * Writes to `out` one byte for each chunk of `image`: `0` all zeros, `=` the same blocks as `base` has there, `d` own data.
   * `base` must be on the same pool. Answers the number of chunks.
   */
  async chunkMap(image: string, base: string | undefined, out: string, chunkBytes: number): Promise<number> {
    return Number(await this.#call("chunk-map", image, base ?? "-", out, String(chunkBytes)));
  }

  /** Makes a network namespace at `path`; answers "exists" if there is one already. */
  addNetns(path: string): Promise<string> {
    return this.#call("netns-add", path);
  }

  async deleteNetns(path: string): Promise<void> {
    await this.#call("netns-delete", path);
  }

  /**
   * A veth pair between two namespaces that are there: the router's end with its address (with prefix) and up, the slot's as it
   * comes. Paths, interface names, hardware addresses.
   */
  async linkSlot(router: RouterEnd, slot: SlotEnd): Promise<void> {
    const near = [router.namespace, router.interface, router.mac, router.address];
    await this.#call("slot-link", ...near, slot.namespace, slot.interface, slot.mac);
  }

  /** lo and the slot's end up, its address (with prefix) and the default route there. Repeatable. */
  async prepareSlot(end: { namespace: string; interface: string; address: string; gateway: string }) {
    await this.#call("slot-prepare", end.namespace, end.interface, end.address, end.gateway);
  }

  /**
   * Removes the pair; none, or no router, is success. Answers whether `set` of the inet table `table` knows the router's end: no
   * packet can put it there any more.
   */
  async unlinkSlot(
    router: { namespace: string; interface: string },
    known: { table: string; set: string },
  ): Promise<{ known: boolean }> {
    const args = [router.namespace, router.interface, known.table, known.set];
    return { known: (await this.#call("slot-unlink", ...args)) === "noted" };
  }

  /**
   * Changes elements of the inet table `table` in the namespace at `router`, in one transaction, of at most `elementsMax` changes. An
   * existing element may be added again; a missing one cannot be deleted.
   */
  async changeElements(router: string, table: string, changes: readonly ElementChange[]): Promise<void> {
    const args = changes.map((one) => [
      one.verb,
      one.set,
      one.interface,
      one.address ?? "",
      one.chain ?? "",
      String(one.mark ?? ""),
      one.ports?.join("-") ?? "",
      String(one.timeoutSeconds ?? ""),
    ]);
    await this.#call("set-elements", router, table, ...args.flat());
  }

  /** Runs a program in its own session; its orphans are reaped at once. A non-zero exit code is no error. */
  async exec(request: ExecRequest): Promise<{ pid: number; exitCode: number }> {
    const { deadlineMs = 60_000, outlives = false } = request;
    if (outlives && this.#outliving) return this.#outliving.exec(request);
    const text = await this.#callFor(
      deadlineMs + killedMs,
      "exec",
      request.netns ?? "",
      request.cwd ?? "",
      request.stdoutFile ?? "",
      request.stderrFile ?? "",
      String(deadlineMs),
      ...request.argv,
    );
    const [pid, exitCode] = text.split(" ").map(Number);
    return { pid: pid ?? 0, exitCode: exitCode ?? -1 };
  }

  /** Waits for running operations, then ends the child. */
  async close(): Promise<void> {
    this.#closed = true;
    await this.#outliving?.close();
    const child = this.#child;
    if (child) {
      const exited = once(child, "exit");
      child.stdin.end();
      await exited;
    }
    await this.#place.remove();
  }

  /** Operations under way, with the child process that runs them, in words. */
  underWay(): string {
    const operations = [...this.#pending.values()].map(({ operation }) => operation).join(", ");
    const own = operations === "" ? "" : `cloche-sys (process ${this.#child?.pid}): ${operations}`;
    return [own, this.#outliving?.underWay() ?? ""].filter((text) => text !== "").join("; ");
  }

  /** The child processes that run. */
  get pids(): number[] {
    const own = this.#child?.pid;
    return [...(own === undefined ? [] : [own]), ...(this.#outliving?.pids ?? [])];
  }

  #call(operation: string, ...args: readonly string[]): Promise<string> {
    return (this.#outliving ?? this).#callFor(operationMs, operation, ...args);
  }

  #callFor(deadlineMs: number, operation: string, ...args: readonly string[]): Promise<string> {
    return step(stepName(operation, args), () => this.#send(operation, args, deadlineMs));
  }

  #send(operation: string, args: readonly string[], deadlineMs: number): Promise<string> {
    if (this.#closed) return Promise.reject(new Error("cloche-sys is closed"));
    const child = (this.#child ??= this.#start());
    const id = String(this.#nextId++);
    return new Promise((resolve, reject) => {
      const late = setTimeout(() => {
        this.#pending.delete(id);
        reject(new NativeError(operation, "ETIMEDOUT", `not finished after ${deadlineMs} ms`));
      }, deadlineMs);
      this.#pending.set(id, { operation, resolve, reject, late });
      child.stdin.write(`${[id, operation, ...args.map(encode)].join("\t")}\n`);
    });
  }

  #start(): ChildProcessByStdio<Writable, Readable, null> {
    const home = process.env["CLOCHE_HOME"];
    // Its own session, so that Ctrl-C in the terminal does not reach it in the middle of an operation.
    const [program, ...args] = this.#place.apart([this.#program]);
    const child = spawn(program, args, {
      stdio: ["pipe", "pipe", "inherit"],
      detached: true,
      // Keepers and gofers outlive us and must not inherit a database's password or a bucket's key. CLOCHE_HOME tells an operator,
      // and the tests' inventory, whose processes they are.
      env: { PATH: systemPath, LC_ALL: "C", ...(home !== undefined && { CLOCHE_HOME: home }) },
    });
    const lost = (why: string) => {
      if (this.#child !== child) return;
      this.#child = undefined;
      for (const [id, pending] of this.#pending) {
        this.#pending.delete(id);
        clearTimeout(pending.late);
        pending.reject(new Error(`${pending.operation}: ${why}`));
      }
    };
    child.on("error", (error) => lost(`cloche-sys cannot be started: ${error.message}`));
    child.stdin.on("error", () => {}); // The close event reports it.
    const lines = createInterface({ input: child.stdout });
    lines.on("line", (line) => this.#answer(line));
    // "close" comes after the last line was read, so an answer is never lost to an exit.
    child.on("close", (code, signal) => lost(`cloche-sys ended (${signal ?? `exit code ${code}`})`));
    return child;
  }

  #answer(line: string): void {
    const [id, errno, text] = line.split("\t");
    const pending = this.#pending.get(id ?? "");
    if (!pending) return;
    this.#pending.delete(id ?? "");
    clearTimeout(pending.late);
    const decoded = decodeBytes(text ?? "");
    if (errno === "0") pending.resolve(decoded);
    else pending.reject(new NativeError(pending.operation, errnoName(Number(errno)), decoded));
  }
}

/** Name of a step: the operation, or the program with the verb of keeper or runsc. */
function stepName(operation: string, args: readonly string[]): string {
  if (operation !== "exec") return operation;
  const [program, ...ofProgram] = args.slice(5);
  const verb = ofProgram.find((arg) => /^(create|start|restore|save|checkpoint|snapshot|resume)$/.test(arg));
  return [(program ?? "").split("/").at(-1), ...(verb === undefined ? [] : [verb])].join(" ");
}

function encode(text: string): string {
  if (text.includes("\0")) throw new Error("an argument of cloche-sys has a NUL byte");
  return text.replace(
    /[%\x01-\x1f]/g,
    (c) => `%${c.charCodeAt(0).toString(16).toUpperCase().padStart(2, "0")}`,
  );
}

function decodeBytes(text: string): string {
  return text.replace(/%([0-9A-F]{2})/g, (_, hex: string) => String.fromCharCode(Number.parseInt(hex, 16)));
}

/** A damaged file system. libuv has names for all other errors, but not for this one. */
const euclean = 117;
const errnoName = (errno: number): string => (errno === euclean ? "EUCLEAN" : getSystemErrorName(-errno));
