/**
 * The endpoint's cache of sandboxes, in memory and not needed after a restart: their data planes with tokens, and the API key with which
 * each was requested. By these keys a signed URL without a sandbox is matched to one.
 */
import { createHash } from "node:crypto";
import type { ServerResponse } from "node:http";
import { ClocheApiError, Gateway, openDataPlane, type SandboxDataPlane, type SandboxInfo } from "@cloche/sdk";
import { isSandboxId } from "@cloche/protocol";
import type { NodeFetch } from "@cloche/sdk/node";
import type { Hold } from "@cloche/base";
import type { AccessTokens } from "../access-token.ts";
import { HeldBodies, type TeamOf } from "../held-bodies.ts";
import { type Signer, Signers } from "../signers.ts";
import { E2bError, noSandbox, notRunning, unreachable } from "../e2b-error.ts";
import { whenClosed } from "../http.ts";
import { Accounts } from "./accounts.ts";
import { HeldBytes, heldBytesMax } from "./held-bytes.ts";
import { ProcessIds } from "./process-ids.ts";
import { Watchers } from "./watchers.ts";

const heldSandboxes = 10_000;
const heldKeys = 32;
const relistMs = 5_000;
/** How often the key of an open stream is looked at. */
const keyCheckMs = 5_000;
/** Sandboxes of a key that are looked for after a restart, the newest ones. */
const listedSandboxes = 100;

export interface OpenSandbox {
  readonly id: string;
  readonly teamId: string;
  readonly apiKey: string;
  readonly plane: SandboxDataPlane;
  readonly accounts: Accounts;
  readonly processIds: ProcessIds;
  readonly watchers: Watchers;
  readonly held: HeldBytes;
  /** Counts a body of the caller until its answer is over. */
  holdBody(response: ServerResponse): Promise<Hold>;
  /** Asks the gateway, which does not wake the sandbox. */
  isRunning(): Promise<boolean>;
}

/** A request that may stay open for long. */
export interface OpenRequest {
  drop(): void;
  whenEnded(then: () => void): void;
}

/** A request until its answer ends. */
export const untilAnswered = (response: ServerResponse): OpenRequest => ({
  drop: () => void response.destroy(),
  whenEnded: (then) => whenClosed(response, then),
});

export interface SandboxesOptions {
  gatewayUrl: string;
  fetch: NodeFetch;
  /** `<base domain>`, with the edge's port unless that is 443. */
  domain: string;
  tokens: AccessTokens;
  /** The API key that this installation made for E2B's clients: its sandboxes are found also after a restart. */
  ownKey: string;
  teamOf: TeamOf;
  /** Sandboxes that are kept open, counted for each key; default 10,000. */
  mostOpen?: number;
}

export class Sandboxes {
  readonly #options: SandboxesOptions;
  readonly bodies: HeldBodies;
  readonly #open = new Map<string, OpenSandbox>();
  readonly #signers = new Signers();
  /** Keys used last, the newest at the end. */
  readonly #keys = new Set<string>();
  readonly #held = new HeldBytes(heldBytesMax.all);
  readonly #heldOfTeam = new Map<string, HeldBytes>();
  #listedAtMs = Number.NEGATIVE_INFINITY;

  constructor(options: SandboxesOptions) {
    this.#options = options;
    this.bodies = new HeldBodies(options.teamOf);
  }

  get domain(): string {
    return this.#options.domain;
  }

  get fetch(): NodeFetch {
    return this.#options.fetch;
  }

  /** The team of an API key; undefined: the key is not valid. */
  teamOf(apiKey: string): Promise<string | undefined> {
    return this.#options.teamOf(apiKey);
  }

  gateway(apiKey: string): Gateway {
    return new Gateway(this.#options.gatewayUrl, apiKey, this.#options.fetch);
  }

  /** The sandbox's token. From now on URLs signed with it are found. */
  issueToken(apiKey: string, sandboxId: string): string {
    this.#remember(apiKey, sandboxId);
    return this.#options.tokens.issue(apiKey, sandboxId);
  }

  /** The API key in a token of that sandbox. */
  keyIn(token: string, sandboxId: string): string | undefined {
    const apiKey = this.#options.tokens.open(token, sandboxId);
    if (apiKey !== undefined) this.#remember(apiKey, sandboxId);
    return apiKey;
  }

  /** The tokens that may have signed a URL: of that sandbox, or of all sandboxes if none is named. */
  async signers(sandboxId: string | undefined): Promise<Signer[]> {
    if (sandboxId === undefined) {
      await this.#list();
      return [...this.#signers.all()];
    }
    const known = [...this.#signers.all(sandboxId)];
    const others = [...this.#allKeys()].filter((apiKey) => known.every((one) => one.apiKey !== apiKey));
    const { tokens } = this.#options;
    return [
      ...known,
      ...others.map((apiKey) => ({ sandboxId, apiKey, token: tokens.issue(apiKey, sandboxId) })),
    ];
  }

  /**
   * Throws `unauthenticated` when the key is no longer valid. Called for each request, because the data plane's tokens
   * that `open` keeps outlive the key.
   */
  async requireKey(apiKey: string, sandboxId: string): Promise<void> {
    await this.find(this.gateway(apiKey), sandboxId);
  }

  /** Drops a request that is still open when its key is no longer valid. */
  endWithKey({ drop, whenEnded }: OpenRequest, apiKey: string, sandboxId: string): void {
    const check = (): void =>
      void this.requireKey(apiKey, sandboxId).catch((error: unknown) => {
        if (E2bError.from(error).code === "unauthenticated") drop();
      });
    const timer = setInterval(check, keyCheckMs);
    whenEnded(() => clearInterval(timer));
  }

  async open(sandboxId: string, apiKey: string): Promise<OpenSandbox> {
    const key = `${sandboxId} ${createHash("sha256").update(apiKey).digest("hex")}`;
    const known = this.#open.get(key);
    if (known !== undefined) return known;
    const teamId = await this.#options.teamOf(apiKey);
    if (teamId === undefined) throw new E2bError("unauthenticated", "the API key is not valid");
    return this.#open.get(key) ?? this.#opened(key, sandboxId, apiKey, teamId);
  }

  #opened(key: string, sandboxId: string, apiKey: string, teamId: string): OpenSandbox {
    const { fetch, domain } = this.#options;
    const gateway = this.gateway(apiKey);
    const plane = openDataPlane({
      domain: `${sandboxId}.${domain}`,
      token: (options) =>
        gateway.issueDataPlaneToken(sandboxId, options).catch((error: unknown) => {
          throw isGone(error) ? notRunning(sandboxId) : error;
        }),
      fetch,
      webSocket: fetch.webSocket,
    });
    const ofTeam = this.#heldOfTeam.get(teamId) ?? new HeldBytes(heldBytesMax.ofTeam, this.#held);
    this.#heldOfTeam.set(teamId, ofTeam);
    const ofSandbox = new HeldBytes(heldBytesMax.ofSandbox, ofTeam);
    const opened: OpenSandbox = {
      id: sandboxId,
      teamId,
      apiKey,
      plane,
      accounts: new Accounts(plane),
      processIds: new ProcessIds(plane),
      watchers: new Watchers(plane, ofSandbox),
      held: ofSandbox,
      holdBody: (response) => this.bodies.of(apiKey, response),
      isRunning: async () => (await this.find(gateway, sandboxId))?.state === "SANDBOX_STATE_RUNNING",
    };
    this.#open.set(key, opened);
    if (this.#open.size > (this.#options.mostOpen ?? heldSandboxes)) this.#dropOfLargestTeam();
    return opened;
  }

  /** Drops the oldest of the team that has the most, so that no team loses its watchers by what another opens. */
  #dropOfLargestTeam(): void {
    const counts = new Map<string, number>();
    for (const { teamId } of this.#open.values()) counts.set(teamId, (counts.get(teamId) ?? 0) + 1);
    const [[largest] = [""]] = [...counts].toSorted(([, one], [, other]) => other - one);
    for (const [key, { teamId, watchers }] of this.#open) {
      if (teamId !== largest) continue;
      watchers.close();
      this.#open.delete(key);
      return;
    }
  }

  /** Undefined if the team has no such sandbox, or it is being deleted. */
  async find(gateway: Gateway, sandboxId: string): Promise<SandboxInfo | undefined> {
    try {
      const info = await gateway.getSandbox(sandboxId);
      return info.state === "SANDBOX_STATE_DELETING" ? undefined : info;
    } catch (error) {
      if (
        error instanceof ClocheApiError &&
        (error.code === "not_found" || error.code === "invalid_argument")
      )
        return undefined;
      throw error;
    }
  }

  async get(gateway: Gateway, sandboxId: string): Promise<SandboxInfo> {
    const info = await this.find(gateway, sandboxId);
    if (info === undefined) throw noSandbox(sandboxId);
    return info;
  }

  /** Explains a refusal or missing answer of the data plane: distinguishes a sandbox that does not run from other errors. */
  async explain({ id, apiKey }: OpenSandbox, thrown: unknown): Promise<E2bError> {
    const error = E2bError.from(thrown);
    const { code, message } = error;
    const isAway = code === "not_found" && message === `there is no sandbox ${id}`;
    if (error.status === 502 || (code !== "unavailable" && !isAway)) return error;
    const info = await this.find(this.gateway(apiKey), id).catch(() => undefined);
    return info?.state === "SANDBOX_STATE_RUNNING" ? unreachable(id, thrown) : notRunning(id);
  }

  forget(sandboxId: string): void {
    this.#signers.forget(sandboxId);
    for (const [key, { id, watchers }] of this.#open) {
      if (id !== sandboxId) continue;
      watchers.close();
      this.#open.delete(key);
    }
  }

  close(): void {
    for (const { watchers } of this.#open.values()) watchers.close();
    this.#open.clear();
  }

  #remember(apiKey: string, sandboxId: string): void {
    if (!isSandboxId(sandboxId)) return;
    this.#keys.delete(apiKey);
    this.#keys.add(apiKey);
    const [oldest] = this.#keys;
    if (this.#keys.size > heldKeys && oldest !== undefined) this.#keys.delete(oldest);
    this.#note(apiKey, sandboxId);
  }

  #note(apiKey: string, sandboxId: string): void {
    this.#signers.add(sandboxId, apiKey, () => this.#options.tokens.issue(apiKey, sandboxId));
  }

  #allKeys(): Set<string> {
    return new Set([...this.#keys, this.#options.ownKey]);
  }

  /** Lists the sandboxes of all known keys. Rate-limited, because anybody can cause it. */
  async #list(): Promise<void> {
    const nowMs = performance.now();
    if (nowMs - this.#listedAtMs < relistMs) return;
    this.#listedAtMs = nowMs;
    for (const apiKey of this.#allKeys()) {
      try {
        const { sandboxes } = await this.gateway(apiKey).listSandboxes({ page_size: listedSandboxes });
        for (const { id } of sandboxes) this.#note(apiKey, id);
      } catch (error) {
        // The tokens of a revoked key are no longer valid.
        if (error instanceof ClocheApiError && error.code === "unauthenticated") this.#keys.delete(apiKey);
      }
    }
  }
}

const isGone = (error: unknown): boolean =>
  error instanceof ClocheApiError && (error.code === "not_found" || error.code === "failed_precondition");
