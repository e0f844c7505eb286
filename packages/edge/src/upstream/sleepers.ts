/**
 * Dozing sandboxes: RUNNING, but frozen by their host while nothing happens in them (the host's doze.ts). From when the
 * route says so, nothing is sent to the agent before RouseSandbox has answered. Requests already under way rouse the
 * sandbox at once.
 */
import type { Log } from "@cloche/base";
import type { Route } from "@cloche/protocol/edge";
import type { Sleeper } from "./agent-pool.ts";
import type { RouteClient, RouteTable } from "../route-table.ts";

const ROUSE_AGAIN_MS = 1_000;

/**
 * True from when the doze is announced, before the machine is frozen. On another computer the relay rouses it instead.
 */
export const dozes = ({ doze, hostAddress }: Route): boolean => doze % 2 === 1 && hostAddress === "";

export class Sleepers {
  readonly #table: RouteTable;
  readonly #client: RouteClient;
  readonly #timeoutMs: number;
  readonly #log: Log;
  readonly #rousing = new Map<string, { doze: number; answered: Promise<void> }>();

  constructor(table: RouteTable, client: RouteClient, timeoutMs: number, log: Log) {
    this.#table = table;
    this.#client = client;
    this.#timeoutMs = timeoutMs;
    this.#log = log;
  }

  of(sandboxId: string): Sleeper {
    return {
      dozes: () => this.#isDozing(sandboxId),
      rouse: () => this.#rouse(sandboxId),
    };
  }

  /** Rouses a sandbox that got a request before its doze was known here. */
  keepAwake(sandboxId: string): void {
    this.#rouse(sandboxId).catch((error: unknown) => {
      this.#log.warn({ err: error, sandbox_id: sandboxId }, "a sandbox that is being asked dozes");
      const again = (): void => {
        if (this.#isDozing(sandboxId)) this.keepAwake(sandboxId);
      };
      setTimeout(again, ROUSE_AGAIN_MS).unref();
    });
  }

  #isDozing(sandboxId: string): boolean {
    const route = this.#table.get(sandboxId);
    return route !== undefined && dozes(route);
  }

  /** Makes one call to the gateway for all requests that wait on the same doze. */
  #rouse(sandboxId: string): Promise<void> {
    const doze = this.#table.get(sandboxId)?.doze ?? 0;
    const known = this.#rousing.get(sandboxId);
    if (known?.doze === doze) return known.answered;
    const over = (): void => {
      if (this.#rousing.get(sandboxId)?.answered === answered) this.#rousing.delete(sandboxId);
    };
    const answered: Promise<void> = this.#client
      .rouseSandbox({ sandboxId }, { timeoutMs: this.#timeoutMs })
      .then(() => undefined)
      .finally(over);
    this.#rousing.set(sandboxId, { doze, answered });
    return answered;
  }
}
