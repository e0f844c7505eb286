/**
 * Sessions of clients that speak a 2025 protocol: `initialize` opens a session, the header `mcp-session-id` names it, DELETE or idleness
 * ends it. Newer clients have none. A session is bound to the API key that opened it, and is only in memory: after a restart its client
 * gets 404 and opens another, as the protocol says.
 *
 *   initialize ──▶ open ──(DELETE | idle | pushed out by a newer one | close)──▶ closed: its calls are cancelled
 */
import { randomUUID } from "node:crypto";
import { type McpServer, WebStandardStreamableHTTPServerTransport } from "@modelcontextprotocol/server";
import { type Caller, Refusal } from "./caller.ts";

export interface SessionLimits {
  sessionsPerKey: number;
  sessions: number;
  sessionIdleMs: number;
}

interface Session {
  readonly id: string;
  readonly keyHash: string;
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

  /** Opens a session. At the limit it closes the caller's longest idle session; 429 if all are in use. */
  async create(caller: Caller, server: McpServer): Promise<Session> {
    const own = [...this.#open.values()].filter(({ keyHash }) => keyHash === caller.keyHash);
    if (own.length >= this.#limits.sessionsPerKey) await this.#pushOut(own);
    if (this.#open.size >= this.#limits.sessions) await this.#pushOut([...this.#open.values()]);
    const id = randomUUID();
    const transport = new WebStandardStreamableHTTPServerTransport({ sessionIdGenerator: () => id });
    await server.connect(transport);
    const nowMs = this.#nowMs;
    const session: Session = {
      id,
      keyHash: caller.keyHash,
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
    this.#open.set(id, session);
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

  async close(): Promise<void> {
    await Promise.all([...this.#open.values()].map((session) => this.#close(session)));
  }

  async #pushOut(sessions: Session[]): Promise<void> {
    const idle = sessions.filter(({ underWay }) => underWay === 0).sort((a, b) => a.usedMs - b.usedMs)[0];
    if (idle === undefined)
      throw new Refusal(
        429,
        `${sessions.length} sessions are in use, which is the most; end one with DELETE`,
        { "retry-after": "30" },
      );
    await this.#close(idle);
  }

  async #close(session: Session): Promise<void> {
    this.#open.delete(session.id);
    await session.transport.close();
  }
}
