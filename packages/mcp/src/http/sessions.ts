/**
 * Sessions of clients that speak a 2025 protocol: `initialize` opens a session, the header `mcp-session-id` names it, DELETE or idleness
 * ends it. Newer clients have none. A session is bound to the API key that opened it, and is only in memory: after a restart its client
 * gets 404 and opens another, as the protocol says. Places are bounded for a key, a team and in all; the last place of all is taken from
 * the team with the most sessions, so a team at its bound takes no place of another.
 *
 *   initialize ──▶ open ──(DELETE | idle | pushed out by a newer one | close)──▶ closed: its calls are cancelled
 */
import { randomUUID } from "node:crypto";
import { type McpServer, WebStandardStreamableHTTPServerTransport } from "@modelcontextprotocol/server";
import { type Caller, Refusal } from "./caller.ts";

export interface SessionLimits {
  sessionsPerKey: number;
  sessionsPerTeam: number;
  sessions: number;
  sessionIdleMs: number;
}

interface Session {
  readonly id: string;
  readonly keyHash: string;
  readonly teamId: string;
  readonly transport: WebStandardStreamableHTTPServerTransport;
  /** Number of answers being sent, with streams. */
  underWay: number;
  usedMs: number;
  /** Counts a request; call the answer when the request has ended. */
  enter(): () => void;
}

export class Sessions {
  readonly #limits: SessionLimits;
  readonly #nowMs: () => number;
  readonly #open = new Map<string, Session>();

  constructor(limits: SessionLimits, nowMs: () => number = Date.now) {
    this.#limits = limits;
    this.#nowMs = nowMs;
  }

  get size(): number {
    return this.#open.size;
  }

  /** A session of this caller. 404 for a session of another caller. */
  find(id: string, caller: Caller): Session {
    const session = this.#open.get(id);
    if (session === undefined || session.keyHash !== caller.keyHash)
      throw new Refusal(404, "there is no such session; send initialize to open one");
    return session;
  }

  /** Opens a session. At a bound it closes the longest idle session within the bound; 429 if all are in use. */
  async create(caller: Caller, server: McpServer): Promise<Session> {
    const ended = this.#makeRoom(caller);
    const id = randomUUID();
    const transport = new WebStandardStreamableHTTPServerTransport({ sessionIdGenerator: () => id });
    const nowMs = this.#nowMs;
    const session: Session = {
      id,
      keyHash: caller.keyHash,
      teamId: caller.teamId,
      transport,
      underWay: 0,
      usedMs: nowMs(),
      enter() {
        this.underWay += 1;
        return () => {
          this.underWay -= 1;
          this.usedMs = nowMs();
        };
      },
    };
    // In its place before anything is awaited: sessions that open at the same time count each other.
    this.#open.set(id, session);
    try {
      await Promise.all(ended.map((one) => this.#close(one)));
      await server.connect(transport);
    } catch (error) {
      this.#open.delete(id);
      throw error;
    }
    const closed = transport.onclose;
    transport.onclose = () => {
      this.#open.delete(id);
      closed?.();
    };
    return session;
  }

  /** Closes sessions that were idle for long. */
  async sweep(): Promise<void> {
    const before = this.#nowMs() - this.#limits.sessionIdleMs;
    const idle = [...this.#open.values()].filter(
      ({ underWay, usedMs }) => underWay === 0 && usedMs <= before,
    );
    await Promise.all(idle.map((session) => this.#close(session)));
  }

  /** Closes the sessions of a key that is no longer valid. */
  async closeOf(keyHash: string): Promise<void> {
    await Promise.all(this.#all((one) => one.keyHash === keyHash).map((session) => this.#close(session)));
  }

  async close(): Promise<void> {
    await Promise.all([...this.#open.values()].map((session) => this.#close(session)));
  }

  /** Takes sessions out that must end for one more of this caller. */
  #makeRoom({ keyHash, teamId }: Caller): Session[] {
    const { sessionsPerKey, sessionsPerTeam, sessions } = this.#limits;
    const ended: Session[] = [];
    const pushOut = (from: readonly Session[], mayBeInUse = false): void => {
      const one = longestUnused(from.filter(({ underWay }) => underWay === 0)) ?? longestUnused(from);
      if (one === undefined || (one.underWay > 0 && !mayBeInUse)) throw allInUse(from.length);
      this.#open.delete(one.id);
      ended.push(one);
    };
    const ofKey = this.#all((one) => one.keyHash === keyHash);
    if (ofKey.length >= sessionsPerKey) pushOut(ofKey);
    const ofTeam = this.#all((one) => one.teamId === teamId);
    if (ofTeam.length >= sessionsPerTeam) pushOut(ofTeam);
    if (this.#open.size >= sessions) {
      const largest = this.#largestTeam();
      const isOthers = largest.length > ofTeam.length;
      pushOut(isOthers ? largest : ofTeam, isOthers);
    }
    return ended;
  }

  #all(which: (session: Session) => boolean): Session[] {
    return [...this.#open.values()].filter(which);
  }

  #largestTeam(): Session[] {
    const teams = Map.groupBy(this.#open.values(), ({ teamId }) => teamId);
    return [...teams.values()].reduce((most, one) => (one.length > most.length ? one : most), []);
  }

  async #close(session: Session): Promise<void> {
    this.#open.delete(session.id);
    await session.transport.close();
  }
}

const longestUnused = (sessions: readonly Session[]): Session | undefined =>
  sessions.toSorted((a, b) => a.usedMs - b.usedMs)[0];

const allInUse = (count: number): Refusal =>
  new Refusal(429, `${count} sessions are in use, which is the most; end one with DELETE`, {
    "retry-after": "30",
  });
