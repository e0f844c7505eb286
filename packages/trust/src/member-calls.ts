/**
 * Bounds what one member of the cluster makes this process hold: its certificate says who it is, but its computer may
 * have been taken over. Counts over all connections of the member: connections, bytes of requests, and answers that it
 * does not read.
 */
import { constants, type ServerHttp2Session, type ServerHttp2Stream } from "node:http2";
import type { Socket } from "node:net";
import { listenerBounds, memberBounds, paceStream } from "@cloche/base";

/** `bodyMs`: time for a whole request. */
export type MemberBounds = Record<
  "connections" | "streams" | "streamResetsPerSecond" | "heldBytes" | "processBytes" | "bodyMs",
  number
>;

/** A call under way. `read`: bytes of its request so far; `held`: as counted last. */
interface Call {
  readonly stream: ServerHttp2Stream;
  read: number;
  held: number;
}

interface Member {
  /** Oldest first. */
  readonly sockets: Set<Socket>;
  held: number;
}

export class MemberCalls {
  readonly #bounds: MemberBounds;
  readonly #members = new Map<string, Member>();
  /** Of all members. */
  #held = 0;

  constructor(bounds: Partial<MemberBounds> = {}) {
    this.#bounds = { ...memberBounds, bodyMs: listenerBounds.bodyMs, ...bounds };
  }

  /**
   * `name`: the member's, from its certificate. A member with all its connections gives up its oldest: the socket,
   * because node waits for the other side to close a session that this has said good-bye to.
   */
  opened(name: string, session: ServerHttp2Session, socket: Socket): void {
    const member = this.#members.get(name) ?? { sockets: new Set(), held: 0 };
    this.#members.set(name, member);
    const [oldest] = member.sockets;
    if (member.sockets.size >= this.#bounds.connections) oldest?.destroy();
    member.sockets.add(socket);
    socket.once("close", () => {
      member.sockets.delete(socket);
      if (member.sockets.size === 0 && this.#members.get(name) === member) this.#members.delete(name);
    });
    session.on("stream", (stream) => this.#asked(member, stream, session.socket as Socket));
  }

  #asked(member: Member, stream: ServerHttp2Stream, socket: Socket): void {
    const call: Call = { stream, read: 0, held: 0 };
    const late = setTimeout(() => {
      if (stream.state.remoteClose !== 1) stream.close(constants.NGHTTP2_CANCEL);
    }, this.#bounds.bodyMs).unref();
    const push = stream.push.bind(stream);
    stream.push = (piece: unknown, encoding?: BufferEncoding): boolean => {
      if (piece instanceof Uint8Array) call.read += piece.length;
      this.#count(member, call);
      return push(piece, encoding);
    };
    const write = stream.write.bind(stream) as (...args: unknown[]) => boolean;
    stream.write = (...args: unknown[]): boolean => {
      const goesOn = write(...args);
      this.#count(member, call);
      return goesOn;
    };
    stream.on("drain", () => this.#count(member, call));
    stream.once("close", () => {
      clearTimeout(late);
      this.#set(member, call, 0);
    });
    paceStream(stream, socket);
  }

  /** Ends the call with which the member, or all members together, hold too much. */
  #count(member: Member, call: Call): void {
    const { stream } = call;
    if (stream.destroyed) return;
    this.#set(member, call, call.read + stream.writableLength);
    const { heldBytes, processBytes } = this.#bounds;
    if (member.held > heldBytes || this.#held > processBytes)
      stream.close(constants.NGHTTP2_ENHANCE_YOUR_CALM);
  }

  #set(member: Member, call: Call, held: number): void {
    member.held += held - call.held;
    this.#held += held - call.held;
    call.held = held;
  }
}
