import { Code, ConnectError } from "@connectrpc/connect";
import { ClocheError, remedyOf, type SandboxState, stateWithReason } from "@cloche/protocol";
import type { Route } from "@cloche/protocol/edge";
import type { AnswerFailure } from "../upstream/agent-connection.ts";
import type { EdgeLimits } from "../edge-limits.ts";
import type { RouteClient, RouteTable } from "../route-table.ts";
import { type Waiter, WaitingRoom } from "./waiting-room.ts";

const running = "SANDBOX_STATE_RUNNING";
/** States that end by themselves: the client is told to try again. */
const passing = new Set(["SANDBOX_STATE_CREATING", "SANDBOX_STATE_SUSPENDING", "SANDBOX_STATE_RESUMING"]);
/** States on the way to RUNNING. Of several gateways, the edge's own may hear of RUNNING a moment after the client was answered. */
const coming = new Set(["SANDBOX_STATE_CREATING", "SANDBOX_STATE_RESUMING"]);
const wakeable = new Set(["SANDBOX_STATE_SUSPENDING", "SANDBOX_STATE_SUSPENDED", "SANDBOX_STATE_RESUMING"]);

/** The caller of a request. */
export interface GateCaller {
  kind: Waiter;
  /** Throws when the caller has no valid token and the owner does not admit callers without one. */
  authorise: () => Promise<unknown>;
}

/**
 * Decides whether a request may go to a sandbox now (spec/contract.md, The running system). An unknown sandbox is 404.
 * A sandbox that is not RUNNING is 503 naming the state, unless it has auto_resume and the caller a valid token: that
 * wakes the sandbox. During a restore the request waits for a limited time. Callers without a token neither wait nor
 * wake a sandbox, not even a dozing one; visitors of a public port, whom its owner admits, count as callers with a
 * token.
 */
export class Gate {
  readonly #table: RouteTable;
  readonly #client: RouteClient;
  readonly #limits: EdgeLimits;
  readonly #waking = new Map<string, Promise<Route>>();
  readonly #waiting: WaitingRoom;

  constructor(table: RouteTable, client: RouteClient, limits: EdgeLimits) {
    this.#table = table;
    this.#client = client;
    this.#limits = limits;
    this.#waiting = new WaitingRoom(limits);
  }

  /** The route, if any caller's request may go on at once. `ofHost`: for the host, also during a restore. */
  now(sandboxId: string, ofHost: boolean): Route | undefined {
    const route = this.#table.get(sandboxId);
    return route?.state === running && (ofHost || !route.busy) ? route : undefined;
  }

  /** Whether the sandbox is still where the route says. */
  isStill({ sandboxId, epoch }: Route): boolean {
    const route = this.#table.get(sandboxId);
    return route?.state === running && !route.busy && route.epoch === epoch;
  }

  /** Returns the route, after waking the sandbox or waiting if needed. */
  async admit(sandboxId: string, ofHost: boolean, { kind, authorise }: GateCaller): Promise<Route> {
    let route = this.#known(sandboxId);
    if (coming.has(route.state) && !route.autoResume && kind === "bearer") {
      // Who has no valid token is told the state, and waits for nothing.
      await authorise().catch((cause: unknown) => Promise.reject(notRunning(route, cause)));
      route = await this.#waiting.within(this.#known(sandboxId), kind, () =>
        this.#afterWait(sandboxId, this.#limits.comingMs, ({ state }) => coming.has(state)),
      );
    }
    if (route.state !== running) {
      if (!route.autoResume || !wakeable.has(route.state)) {
        const isOwn = kind === "bearer" && (await isAuthorised(authorise));
        throw notRunning(route, undefined, isOwn ? route.why : "");
      }
      await authorise();
      // Another request may have woken the sandbox while this one's token was verified.
      route = this.#known(sandboxId);
      if (route.state !== running)
        route = await this.#waiting.within(route, kind, () => this.#wake(sandboxId));
      if (route.state !== running) throw notRunning(route, undefined, kind === "bearer" ? route.why : "");
    } else if (!ofHost && kind === "bearer") {
      await authorise();
      route = this.#known(sandboxId);
      if (route.state !== running) return this.admit(sandboxId, ofHost, { kind, authorise });
    }
    if (ofHost || !route.busy) return route;
    route = await this.#waiting.within(route, kind, () =>
      this.#afterWait(sandboxId, this.#limits.busyWaitMs, ({ state, busy }) => state === running && busy),
    );
    if (route.state !== running) throw notRunning(route);
    if (route.busy) throw unavailable(`sandbox ${sandboxId} is being restored from a checkpoint`, 1);
    return route;
  }

  #known(sandboxId: string): Route {
    const route = this.#table.get(sandboxId);
    if (route !== undefined) return route;
    if (!this.#table.synced) throw unavailable("the edge is starting and does not know its sandboxes yet", 1);
    throw new ClocheError("not_found", `there is no sandbox ${sandboxId}`);
  }

  /** Makes one call to the gateway for all requests that wait. */
  #wake(sandboxId: string): Promise<Route> {
    let waking = this.#waking.get(sandboxId);
    if (waking === undefined) {
      waking = this.#client
        .wakeSandbox({ sandboxId }, { timeoutMs: this.#limits.wakeMs })
        .then((route) => {
          this.#table.setIfNewer(route);
          const known = this.#table.get(sandboxId) ?? route;
          return known.state === running ? known : route;
        })
        .catch((error: unknown) => {
          const route = this.#known(sandboxId);
          if (ConnectError.from(error).code === Code.NotFound) {
            throw new ClocheError("not_found", `there is no sandbox ${sandboxId}`);
          }
          throw notRunning(route, error);
        })
        .finally(() => this.#waking.delete(sandboxId));
      this.#waking.set(sandboxId, waking);
    }
    return waking;
  }

  /** Answers the route when `waits` no longer holds of it, or after `limitMs`. Throws if the sandbox is gone by then. */
  #afterWait(sandboxId: string, limitMs: number, waits: (route: Route) => boolean): Promise<Route> {
    return new Promise((resolve, reject) => {
      let forget = (): void => undefined;
      const settle = (): void => {
        forget();
        clearTimeout(timer);
        try {
          resolve(this.#known(sandboxId));
        } catch (error) {
          reject(error as Error);
        }
      };
      const timer = setTimeout(settle, limitMs);
      const check = (): void => {
        const route = this.#table.get(sandboxId);
        if (route !== undefined && waits(route)) forget = this.#table.onceChanged(sandboxId, check);
        else settle();
      };
      check();
    });
  }

  /** The error for a client whose sandbox gave no answer. */
  explain(sandboxId: string, failure: AnswerFailure, asked = "the sandbox"): ClocheError {
    const route = this.#table.get(sandboxId);
    const { cause } = failure;
    if (route === undefined)
      return new ClocheError("not_found", `there is no sandbox ${sandboxId}`, { cause });
    if (route.state !== running) return notRunning(route, cause);
    switch (failure.kind) {
      case "connect":
        return unavailable(`${asked} cannot be reached`, 1, cause);
      case "closed":
        return unavailable(
          `${asked} was suspended, restored or moved before it answered; what was asked may run on`,
          1,
          cause,
        );
      case "lost":
        return unavailable(
          `the connection to ${asked} was lost before it answered; what was asked may run on`,
          undefined,
          cause,
        );
      case "http2":
        return unavailable(`${asked} speaks HTTP/2 alone; ask again`, 1, cause);
      case "format":
        return unavailable(`${asked} gave no valid HTTP answer`, undefined, cause);
      case "exhausted":
        return unavailable(`too many requests of ${asked} are open`, 1, cause);
    }
  }
}

function unavailable(
  message: string,
  retryAfterSeconds?: number,
  cause?: unknown,
  reason?: "not_running",
): ClocheError {
  return new ClocheError("unavailable", message, {
    cause,
    ...(reason === undefined ? {} : { reason }),
    ...(retryAfterSeconds === undefined ? {} : { retryAfterSeconds }),
  });
}

const isAuthorised = (authorise: () => Promise<unknown>): Promise<boolean> =>
  authorise().then(
    () => true,
    () => false,
  );

/** `why`: only for callers with a token of the sandbox; visitors and strangers are told the state alone. */
function notRunning({ sandboxId, state }: Route, cause?: unknown, why = ""): ClocheError {
  const is = `sandbox ${sandboxId} is ${stateWithReason(state, why)}`;
  const remedy = remedyOf(state as SandboxState, sandboxId);
  return unavailable(
    `${is}; its data plane answers while it is ${running}${remedy === "" ? "" : `; ${remedy}`}`,
    passing.has(state) ? 1 : undefined,
    cause,
    "not_running",
  );
}
