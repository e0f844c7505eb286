/**
 * Name resolution for sandboxes: the router redirects their port 53 here (rules.ts), and the forwarder asks the host's resolvers.
 * Owns one UDP and one TCP socket on the host's end of the uplink. Sandboxes are hostile: everything has a limit, each
 * question goes upstream from a new port with a new id, and only an answer to that question is passed back.
 *
 * Called by network.ts. Nothing survives a crash; the next start listens again.
 */
import { randomInt } from "node:crypto";
import { createSocket, type RemoteInfo, type Socket as UdpSocket } from "node:dgram";
import { once } from "node:events";
import { type AddressInfo, connect, createServer, isIPv6, type Server, type Socket } from "node:net";
import { asBuffer, RateLimit } from "@cloche/base";
import { GatheredBytes } from "@cloche/protocol";
import {
  answers,
  type DnsQuestion,
  isServerFailure,
  parseQuery,
  rcodeServerFailure,
  refusal,
  withId,
} from "./dns-message.ts";
import { SharedPlaces } from "./shared-places.ts";

/** Tries to find a port that is free for both UDP and TCP. */
const portTries = 10;

export const dnsLimits = {
  /** A longer message is no query. */
  queryBytes: 1_232,
  /** Questions waiting for an answer; each has a socket. */
  pending: { ofSlot: 64, ofTeam: 512, all: 2_048, always: 32 },
  /** TCP connections of sandboxes. */
  connections: { ofSlot: 8, ofTeam: 128, all: 512, always: 8 },
  /** Sustained rates of one sandbox and of one team, with bursts of so many seconds. */
  queriesPerSecond: 200,
  queriesPerSecondOfTeam: 1_000,
  burstSeconds: 2,
  /** Time for one resolver; then the next is asked. */
  upstreamTimeoutMs: 2_500,
  idleConnectionMs: 10_000,
} as const;

export interface DnsForwarderOptions {
  /** Address to listen on. */
  readonly address: string;
  readonly port?: number;
  /** Addresses of the resolvers to ask, in this order; read again for every question. */
  readonly resolvers: () => Promise<readonly string[]>;
  /** Port of the resolvers. Default 53; tests use another. */
  readonly upstreamPort?: number;
  /** The slot that an address belongs to; undefined: not answered. */
  readonly slotOf: (address: string) => number | undefined;
  /** The team of a slot; undefined: not known. Sandboxes of a team share its places. Default: each slot is its own. */
  readonly teamOf?: (slot: number) => string | undefined;
  /** Which names each sandbox may ask, and which answers it gets. Default: all. */
  readonly policy?: NamePolicy;
  /** Called with failures to answer, such as to let an answer's addresses through. */
  readonly onError?: (error: unknown) => void;
  readonly now?: () => number;
}

export interface NamePolicy {
  /** An answer without asking upstream: a refusal, or an empty answer. Undefined: ask. */
  before(slot: number, question: DnsQuestion, query: Buffer): Buffer | undefined;
  /** The answer as the sandbox gets it. Its addresses may be reached once this resolves. */
  after(slot: number, question: DnsQuestion, query: Buffer, answer: Buffer): Promise<Buffer>;
}

export class DnsForwarder {
  readonly #options: DnsForwarderOptions;
  readonly #udp: UdpSocket = createSocket("udp4");
  readonly #tcp: Server = createServer({ pauseOnConnect: false }, (socket) => this.#serveConnection(socket));
  readonly #connections = new Set<Socket>();
  #isClosed = false;
  readonly #pendingPlaces = new SharedPlaces(dnsLimits.pending);
  readonly #connectionPlaces = new SharedPlaces(dnsLimits.connections);
  readonly #rateOfSlots: RateLimit;
  readonly #rateOfTeams: RateLimit;

  constructor(options: DnsForwarderOptions) {
    this.#options = options;
    const { queriesPerSecond, queriesPerSecondOfTeam, burstSeconds } = dnsLimits;
    const common = { burstSeconds, monotonicMs: options.now ?? Date.now };
    this.#rateOfSlots = new RateLimit({ ...common, perSecond: queriesPerSecond });
    this.#rateOfTeams = new RateLimit({ ...common, perSecond: queriesPerSecondOfTeam });
  }

  /** Binds UDP and TCP to the same port and answers it. */
  async listen(): Promise<number> {
    const { port = 0 } = this.#options;
    this.#udp.on("message", (message, from) => {
      this.#serveDatagram(message, from).catch((error: unknown) => this.#options.onError?.(error));
    });
    const bound = await this.#bindBoth(port);
    // Errors of single datagrams (such as unreachable) affect only their sandbox.
    this.#udp.on("error", () => {});
    return bound;
  }

  /** TCP chooses the port first: calls to agents leave from this address, and their ports stay in use for a minute. */
  async #bindBoth(port: number, triesLeft = portTries): Promise<number> {
    const { address } = this.#options;
    this.#tcp.listen(port, address);
    await once(this.#tcp, "listening");
    const bound = (this.#tcp.address() as AddressInfo).port;
    try {
      this.#udp.bind(bound, address);
      await once(this.#udp, "listening");
      return bound;
    } catch (error) {
      this.#tcp.close();
      const isTaken = (error as NodeJS.ErrnoException).code === "EADDRINUSE";
      if (port !== 0 || !isTaken || triesLeft === 0) throw error;
      await once(this.#tcp, "close");
      return this.#bindBoth(port, triesLeft - 1);
    }
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    for (const socket of this.#connections) socket.destroy();
    const closed = once(this.#tcp, "close");
    this.#tcp.close();
    await closed;
    this.#udp.close();
  }

  async #serveDatagram(message: Buffer, from: RemoteInfo): Promise<void> {
    const slot = this.#options.slotOf(from.address);
    // A sandbox can send from port 0, to which no answer can be sent: node throws.
    if (slot === undefined || from.port === 0) return;
    const answer = await this.#answer(slot, message, askByUdp);
    if (answer && !this.#isClosed) this.#udp.send(answer, from.port, from.address, () => {});
  }

  #serveConnection(socket: Socket): void {
    const slot = this.#options.slotOf(socket.remoteAddress ?? "");
    const leave = slot === undefined ? undefined : this.#connectionPlaces.take(slot, this.#teamOf(slot));
    if (slot === undefined || leave === undefined) {
      socket.destroy();
      return;
    }
    this.#connections.add(socket);
    socket.on("error", () => socket.destroy());
    socket.on("close", () => {
      leave();
      this.#connections.delete(socket);
    });
    socket.setTimeout(dnsLimits.idleConnectionMs, () => socket.destroy());
    let buffered = Buffer.alloc(0);
    const takeFrame = (): Buffer | undefined => {
      if (buffered.length < 2) return undefined;
      const length = buffered.readUInt16BE(0);
      if (length > dnsLimits.queryBytes) socket.destroy();
      if (length > dnsLimits.queryBytes || buffered.length < 2 + length) return undefined;
      const query = buffered.subarray(2, 2 + length);
      buffered = buffered.subarray(2 + length);
      return query;
    };
    const serve = async (): Promise<void> => {
      for (let query = takeFrame(); query; query = takeFrame()) {
        const answer = await this.#answer(slot, query, askByTcp);
        // A sandbox that reads no answers gets none of its further questions answered, and its connection ends as an idle one.
        if (answer && socket.writable && !socket.write(frame(answer))) await drained(socket);
      }
      socket.resume();
    };
    socket.on("data", (chunk) => {
      // One question at a time, so that further ones wait in the sandbox and not here.
      socket.pause();
      buffered = Buffer.concat([buffered, chunk]);
      serve().catch((error: unknown) => {
        this.#options.onError?.(error);
        socket.destroy();
      });
    });
  }

  /** Undefined: no answer, because the message is no question or comes too fast. */
  async #answer(slot: number, query: Buffer, ask: Ask): Promise<Buffer | undefined> {
    if (query.length > dnsLimits.queryBytes) return undefined;
    const question = parseQuery(query);
    const team = this.#teamOf(slot);
    if (!question || this.#isTooFast(slot, team)) return undefined;
    const { policy } = this.#options;
    const settled = policy?.before(slot, question, query);
    if (settled) return settled;
    const leave = this.#pendingPlaces.take(slot, team);
    if (leave === undefined) return refusal(query, rcodeServerFailure);
    try {
      const answer = await this.#askResolvers(query, ask);
      if (answer === undefined) return refusal(query, rcodeServerFailure);
      const passed = policy ? await policy.after(slot, question, query, answer) : answer;
      return withId(passed, question.id);
    } catch (error) {
      this.#options.onError?.(error);
      return refusal(query, rcodeServerFailure);
    } finally {
      leave();
    }
  }

  /** The first answer that settles the question; else the last that a resolver gave, which says that it could not. */
  async #askResolvers(query: Buffer, ask: Ask): Promise<Buffer | undefined> {
    const asked = withId(query, randomInt(0x1_0000));
    let failure: Buffer | undefined;
    for (const resolver of await this.#options.resolvers()) {
      const answer = await ask(resolver, this.#options.upstreamPort ?? 53, asked);
      if (answer === undefined) continue;
      if (!isServerFailure(answer)) return answer;
      failure = answer;
    }
    return failure;
  }

  #teamOf(slot: number): string {
    return this.#options.teamOf?.(slot) ?? `of slot ${slot} alone`;
  }

  #isTooFast(slot: number, team: string): boolean {
    return this.#rateOfSlots.take(String(slot)) > 0 || this.#rateOfTeams.take(team) > 0;
  }
}

/** Undefined: no answer in time. */
type Ask = (resolver: string, port: number, query: Buffer) => Promise<Buffer | undefined>;

function askByUdp(resolver: string, port: number, query: Buffer): Promise<Buffer | undefined> {
  return new Promise((resolve) => {
    const socket = createSocket(isIPv6(resolver.split("%")[0] ?? "") ? "udp6" : "udp4");
    const finish = (answer: Buffer | undefined) => {
      clearTimeout(timer);
      socket.removeAllListeners();
      socket.on("error", () => {});
      socket.close();
      resolve(answer);
    };
    const timer = setTimeout(() => finish(undefined), dnsLimits.upstreamTimeoutMs);
    socket.on("error", () => finish(undefined));
    // A connected socket takes only datagrams of this resolver. Without a callback, which would get an error as well.
    socket.once("connect", () => socket.send(query)).connect(port, resolver);
    socket.on("message", (message) => {
      if (answers(message, query)) finish(message);
    });
  });
}

function askByTcp(resolver: string, port: number, query: Buffer): Promise<Buffer | undefined> {
  return new Promise((resolve) => {
    const socket = connect({ host: resolver, port });
    const received = new GatheredBytes();
    let wanted = 2;
    const finish = (answer: Buffer | undefined) => {
      clearTimeout(timer);
      socket.destroy();
      resolve(answer);
    };
    const timer = setTimeout(() => finish(undefined), dnsLimits.upstreamTimeoutMs);
    socket.on("error", () => finish(undefined));
    socket.on("end", () => finish(undefined));
    socket.on("connect", () => socket.write(frame(query)));
    socket.on("data", (chunk) => {
      received.push(chunk);
      if (received.length < wanted) return;
      const bytes = asBuffer(received.take());
      wanted = 2 + bytes.readUInt16BE(0);
      if (bytes.length < wanted) return received.push(bytes);
      const message = bytes.subarray(2, wanted);
      finish(answers(message, query) ? message : undefined);
    });
  });
}

const drained = (socket: Socket): Promise<void> =>
  new Promise((resolve) => {
    socket.once("drain", resolve).once("close", resolve);
    if (socket.destroyed) resolve();
  });

function frame(message: Buffer): Buffer {
  const length = Buffer.alloc(2);
  length.writeUInt16BE(message.length, 0);
  return Buffer.concat([length, message]);
}
