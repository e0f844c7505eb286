/**
 * Limits the bytes in memory that came from one side and that the other side does not take: uploads that no sandbox
 * reads, answers that no client reads, and what an upgraded connection (WebSocket, terminal, port) carries either way. Flow control bounds them for each stream and connection; here they are
 * counted for a sandbox, a team and the edge. Beyond a bound the exchange is cut that has stood still for longest, so
 * transfers that go on are kept. Looks at all exchanges a few times a second: between two looks at most what the
 * windows allow can come.
 */
import { ClocheError } from "@cloche/protocol";
import type { EdgeLimits } from "./edge-limits.ts";
import type { Exchange } from "./exchange/exchange.ts";
import { Http2Request } from "./http2/http2-request.ts";

type Limits = Pick<EdgeLimits, "heldOfSandbox" | "heldOfTeam" | "heldOfEdge">;

interface Held {
  bytes: number;
  /** Changes whenever some bytes move on. */
  mark: string;
  /** The look at which it stood still first. */
  since: number;
}

export class HeldBytes {
  readonly #limits: Limits;
  readonly #teamOf: (sandboxId: string) => string | undefined;
  readonly #exchanges = new Map<Exchange, Held>();
  #rounds = 0;

  constructor(limits: Limits, teamOf: (sandboxId: string) => string | undefined) {
    this.#limits = limits;
    this.#teamOf = teamOf;
  }

  add(exchange: Exchange): void {
    this.#exchanges.set(exchange, { bytes: 0, mark: "", since: this.#rounds });
  }

  delete(exchange: Exchange): void {
    this.#exchanges.delete(exchange);
  }

  /** Counts what is held, and cuts what is too much. */
  check(): void {
    this.#rounds += 1;
    const { heldOfSandbox, heldOfTeam, heldOfEdge } = this.#limits;
    const holders: [Exchange, Held][] = [];
    for (const [exchange, held] of this.#exchanges) {
      const now = heldBy(exchange);
      if (now.mark !== held.mark) held.since = this.#rounds;
      Object.assign(held, now);
      if (held.bytes > 0) holders.push([exchange, held]);
    }
    const total = holders.reduce((sum, [, { bytes }]) => sum + bytes, 0);
    // Every smaller bound is broken only with more than the smallest of them.
    if (total <= Math.min(heldOfSandbox, heldOfTeam, heldOfEdge)) return;
    // What has stood still for longest gives way; of the like, what holds most.
    holders.sort(([, one], [, other]) => other.since - one.since || one.bytes - other.bytes);
    const sums = new Map<string, number>();
    for (const [exchange, { bytes }] of holders) {
      const { sandboxId } = exchange;
      const scopes: [string, number][] = [
        [`sandbox ${sandboxId}`, heldOfSandbox],
        [`team ${this.#teamOf(sandboxId)}`, heldOfTeam],
        ["edge", heldOfEdge],
      ];
      if (scopes.some(([key, most]) => (sums.get(key) ?? 0) + bytes > most)) this.#cut(exchange);
      else for (const [key] of scopes) sums.set(key, (sums.get(key) ?? 0) + bytes);
    }
  }

  #cut(exchange: Exchange): void {
    this.delete(exchange);
    exchange.failure ??= new ClocheError(
      "resource_exhausted",
      "the other side takes too little of what was sent",
      {
        resource: "body",
      },
    );
    exchange.drop();
  }
}

function heldBy({ request, response, wire, joined }: Exchange): Pick<Held, "bytes" | "mark"> {
  if (joined !== undefined) {
    const lengths = joined.flatMap(({ readableLength, writableLength }) => [readableLength, writableLength]);
    const { bytesRead, bytesWritten } = wire.socket;
    return {
      bytes: lengths.reduce((sum, length) => sum + length, 0),
      mark: `${bytesRead} ${bytesWritten} ${lengths}`,
    };
  }
  if (request instanceof Http2Request) {
    const { stream, bodyBytes } = request;
    const answer = stream.writableLength;
    const bytes = request.readableLength + stream.readableLength + answer;
    return { bytes, mark: `${bodyBytes - request.readableLength} ${answer}` };
  }
  const { socket } = wire;
  const bytes = request.readableLength + socket.readableLength + response.writableLength;
  return { bytes, mark: `${socket.bytesRead} ${socket.bytesWritten}` };
}
