/**
 * Client of the guard, a program of its own (native/guard) that freezes all machines of this host when the deadline of the lease
 * passes, even while this process is stopped or gone.
 *
 *   closed ──open──▶ connected: to the guard that an earlier process left running, or to a new one
 *                      │  ▲ the guard ends, or does not answer within answerMs (it is killed then)
 *                      ▼  │
 *                    broken: a new guard is started at once and told the deadline; until then it uses the one in its file
 *
 * Owns <directory>, on a tmpfs: the guard's socket, lock, deadline and log. The directory and the guard survive this process.
 */
import { mkdir, readFile, rm } from "node:fs/promises";
import { connect, type Socket } from "node:net";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { type Clock, type Log, SerialQueue } from "@cloche/base";
import { bootMs } from "./boot-clock.ts";
import type { Native } from "../sys/native.ts";

export interface GuardParts {
  /** The compiled guard (artifacts/src/programs/programs.ts). */
  program: string;
  /** Made when missing. Its path must be short, because a socket lies in it. */
  directory: string;
  /** Instance tag: names the cgroups of its machines. */
  tag: string;
  native: Pick<Native, "exec">;
  clock: Pick<Clock, "sleep">;
  log: Log;
  /** Root of the cgroups; default /sys/fs/cgroup. */
  cgroups?: string;
}

export interface GuardStatus {
  pid: number;
  /** By the boot clock. */
  untilMs: number;
  machines: number;
  frozen: number;
}

interface Connection {
  socket: Socket;
  answers: AsyncIterator<string>;
}

/** Ample: the guard only writes to cgroups. */
const answerMs = 2_000;
const startAgainMs = 1_000;
/** Guard and host read the same clock. If they differ by more, one does not read the kernel's (a container's /proc/uptime). */
const clocksApartMs = 1_000;

export class Guard {
  readonly #parts: GuardParts;
  readonly #turns = new SerialQueue();
  readonly #closed = new AbortController();
  #connection: Connection | undefined;
  /** The deadline that was set last. */
  #untilMs: number | undefined;

  constructor(parts: GuardParts) {
    this.#parts = parts;
  }

  /** Answers the guard's status. `untilMs`: the deadline set by an earlier process; 0: there was none. */
  async open(): Promise<GuardStatus> {
    await mkdir(this.#parts.directory, { recursive: true, mode: 0o700 });
    return this.status();
  }

  /** Lets machines run until `ms` (boot clock). If `ms` is in the past, they are frozen on return. */
  until(ms: number): Promise<GuardStatus> {
    this.#untilMs = Math.max(0, Math.floor(ms));
    return this.#ask(() => `until ${this.#untilMs}`);
  }

  status(): Promise<GuardStatus> {
    return this.#ask(() => "status");
  }

  /** Disconnects. The guard keeps running with its present deadline. */
  close(): void {
    this.#closed.abort(new Error("the host is stopping"));
    this.#connection?.socket.destroy();
  }

  /** Ends the guard and removes its directory. Only for a host without machines. */
  async end(): Promise<void> {
    this.#closed.abort(new Error("the host is stopping"));
    await this.#turns.run("", async () => {
      const { answers, socket } = await this.#connected().catch(() => ({
        answers: undefined,
        socket: undefined,
      }));
      socket?.write("end\n");
      await this.#inTime(answers?.next());
      socket?.destroy();
      await rm(this.#parts.directory, { recursive: true, force: true });
    });
  }

  /** Asks one question at a time. Replaces a guard that is gone, and tries until it answers. */
  #ask(line: () => string): Promise<GuardStatus> {
    return this.#turns.run("", async () => {
      for (let failures = 1; ; failures += 1) {
        try {
          return await this.#askOnce(line());
        } catch (error) {
          this.#closed.signal.throwIfAborted();
          // The guard may have just ended: the next try starts a new one.
          if (failures === 1) continue;
          this.#parts.log.error(
            { err: error },
            "the guard of this host's lease does not answer: machines are not frozen should this program end too. Trying again",
          );
          await this.#parts.clock.sleep(startAgainMs, this.#closed.signal);
        }
      }
    });
  }

  async #askOnce(line: string): Promise<GuardStatus> {
    const { socket, answers } = await this.#connected();
    socket.write(`${line}\n`);
    const answer = await this.#inTime(answers.next()).catch(async (error: unknown) => {
      await this.#kill();
      throw error;
    });
    const [pid = 0, nowMs = 0, untilMs = 0, machines = 0, frozen = 0] = String(answer?.value)
      .split(" ")
      .map(Number);
    if (answer?.done !== false || pid === 0) throw new Error("the guard has ended");
    if (Math.abs(nowMs - bootMs()) > clocksApartMs + answerMs)
      throw new Error(
        "/proc/uptime is not the time since this computer started; a host of a cluster needs it",
      );
    return { pid, untilMs, machines, frozen };
  }

  async #connected(): Promise<Connection> {
    if (this.#connection) return this.#connection;
    const { directory } = this.#parts;
    const path = join(directory, "socket");
    const socket = await connected(path).catch(async () => {
      if (!this.#closed.signal.aborted) await this.#start();
      return connected(path);
    });
    const answers = createInterface({ input: socket })[Symbol.asyncIterator]();
    const connection = { socket, answers };
    this.#connection = connection;
    socket.on("error", () => undefined);
    socket.once("close", () => {
      if (this.#connection === connection) this.#connection = undefined;
      if (!this.#closed.signal.aborted) this.#replace();
    });
    return connection;
  }

  /** Starts a new guard at once, instead of at the next renewal. */
  #replace(): void {
    this.#parts.log.error({}, "the guard of this host's lease ended; a new one is started");
    const again = this.#untilMs === undefined ? this.status() : this.until(this.#untilMs);
    again.catch(() => undefined);
  }

  async #start(): Promise<void> {
    const { program, directory, tag, native, cgroups = "/sys/fs/cgroup" } = this.#parts;
    const log = join(directory, "log");
    const argv = [program, directory, cgroups, tag] as const;
    const { exitCode } = await native.exec({ argv, outlives: true, stderrFile: log });
    if (exitCode === 0) return;
    const output = await readFile(log, "utf8").catch(() => "");
    throw new Error(`the guard does not start: ${output.trim().split("\n").at(-1)}`);
  }

  /** Kills a guard that is stopped or stuck. */
  async #kill(): Promise<void> {
    const { directory } = this.#parts;
    const pid = Number(await readFile(join(directory, "pid"), "utf8").catch(() => "0"));
    const command = await readFile(`/proc/${pid}/cmdline`, "utf8").catch(() => "");
    if (pid > 1 && command.split("\0").includes(directory)) process.kill(pid, "SIGKILL");
    this.#connection?.socket.destroy();
    this.#connection = undefined;
  }

  async #inTime<T>(answer: Promise<T> | undefined): Promise<T | undefined> {
    const answered = new AbortController();
    const late = this.#parts.clock.sleep(answerMs, answered.signal).then(() => {
      throw new Error(`the guard does not answer within ${answerMs} ms`);
    });
    late.catch(() => undefined);
    return Promise.race([answer, late]).finally(() => answered.abort());
  }
}

function connected(path: string): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const socket = connect(path);
    socket.once("connect", () => resolve(socket));
    socket.once("error", reject);
  });
}
