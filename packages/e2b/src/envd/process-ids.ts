import { ClocheApiError, type ProcessInfo, type SandboxDataPlane, type SandboxProcess } from "@cloche/sdk";
import { badField, E2bError } from "../e2b-error.ts";
import type { Fields } from "../http.ts";

/** Larger than any pid of Linux; for programs that ended before their pid was known. */
const firstMadeUpPid = 4_194_305;
const heldPids = 1_000;

/** Maps the pids and tags of E2B to Cloche's process ids. */
export class ProcessIds {
  readonly #plane: SandboxDataPlane;
  readonly #ids = new Map<number, string>();
  #madeUp = 0;

  constructor(plane: SandboxDataPlane) {
    this.#plane = plane;
  }

  /** Notes a new process; answers the pid for the client. */
  note({ pid, process_id }: ProcessInfo): number {
    const shownPid = pid === 0 ? firstMadeUpPid + (this.#madeUp++ % 1_000_000) : pid;
    this.#ids.delete(shownPid);
    this.#ids.set(shownPid, process_id);
    for (const oldest of this.#ids.keys()) {
      if (this.#ids.size <= heldPids) break;
      this.#ids.delete(oldest);
    }
    return shownPid;
  }

  /** Calls `act` with the process that a selector names. An ended process is not found, as in envd. */
  async with<Answer>(selector: unknown, act: (process: SandboxProcess) => Promise<Answer>): Promise<Answer> {
    const { process } = await this.find(selector);
    try {
      return await act(process);
    } catch (error) {
      throw isEnded(error) ? missing(selector) : error;
    }
  }

  /** The process that a selector names, and its pid. */
  async find(selector: unknown): Promise<{ process: SandboxProcess; pid: number }> {
    const { pid, tag } = readSelector(selector);
    const known = pid === undefined ? undefined : this.#ids.get(pid);
    const process = known === undefined ? undefined : await this.#get(known);
    // Another process may have the same pid by now.
    if (process?.info.status === "running" && process.info.pid === pid) return { process, pid };
    const listed = (await this.running()).find((one) =>
      pid === undefined ? one.tag === tag : one.pid === pid,
    );
    const found = listed && (await this.#get(listed.process_id));
    if (listed === undefined || found === undefined) throw missing(selector);
    return { process: found, pid: this.note(listed) };
  }

  async #get(id: string): Promise<SandboxProcess | undefined> {
    try {
      return await this.#plane.processes.get(id);
    } catch (error) {
      if (isEnded(error)) return undefined;
      throw error;
    }
  }

  /** Running processes that have a pid, oldest first. */
  async running(): Promise<ProcessInfo[]> {
    const all = await this.#plane.processes.list({ status: "running" });
    return all.filter(({ kind, pid }) => pid !== 0 && (kind === "process" || kind === "exec"));
  }
}

function readSelector(selector: unknown): { pid?: number; tag?: string } {
  const { pid, tag } = (selector ?? {}) as Fields;
  if (Number.isSafeInteger(Number(pid)) && pid !== undefined && pid !== null) return { pid: Number(pid) };
  if (typeof tag === "string") return { tag };
  throw badField("process", selector, 'a selector: {"pid": 123} or {"tag": "…"}');
}

const missing = (selector: unknown): E2bError =>
  new E2bError("not_found", `process ${JSON.stringify(selector).slice(0, 100)} not found`);

/** Whether the error says that the process is gone, rather than the sandbox. */
const isEnded = (error: unknown): boolean =>
  error instanceof ClocheApiError &&
  ((error.code === "not_found" && !error.message.startsWith("there is no sandbox")) ||
    (error.code === "failed_precondition" && / ended/.test(error.message)));
