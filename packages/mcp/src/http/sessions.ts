/**
 * Sessions of clients that speak a 2025 protocol: `initialize` opens one, the header `mcp-session-id` names it, DELETE or
 * idleness ends it. Newer clients have none. A session is bound to the API key that opened it, and lives in memory alone:
 * after a restart its client is answered 404 and opens another, as the protocol says.
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
  /** Answers that are being sent, streams included. */
  underWay: number;
  usedMs: number;
  /** A request begins; call the answer when it has ended. */
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

  /** A session that this caller opened. Another's is not there, whatever its id. */
  find(id: string, caller: Caller): Session {
    const session = this.#open.get(id);
    if (session === undefined || session.keyHash !== caller.keyHash)
      throw new Refusal(404, "there is no such session; send initialize to open one");
    return session;
  }

  /** Room is made by closing the caller's session that has been idle longest; 429 where all of them are in use. */
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

  /** Closes those that nobody has used for long. */
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
