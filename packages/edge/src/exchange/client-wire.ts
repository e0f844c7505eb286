/**
 * The client's end of an exchange: an HTTP/1.1 connection, or one stream of an HTTP/2 connection. This interface hides
 * the differences, so that an exchange need not know which it has.
 */
import type { ServerResponse } from "node:http";
import type { Socket } from "node:net";
import type { Duplex } from "node:stream";
import type { TLSSocket } from "node:tls";
import type { RawHeaders } from "./headers.ts";

export interface ClientWire {
  readonly isHttp2: boolean;
  /** The client's connection, which may carry other streams too. */
  readonly socket: Socket;
  /** Cuts the answer, so that the client sees that it is not complete. `code`: HTTP/2's error code, if known. */
  cut(code?: number): void;
  /** Ends the exchange at once, with all that is in memory of it. */
  drop(): void;
  /** Grants an Upgrade; returns the stream of the upgraded protocol. */
  accept(reason: string, headers: RawHeaders, protocol: string): Duplex;
}

export const isTls = (socket: Socket): socket is TLSSocket => "encrypted" in socket;

/** The name that the TLS handshake asked for; undefined: none, or no TLS. */
export function servernameOf(socket: Socket): string | undefined {
  const name = isTls(socket) ? socket.servername : undefined;
  return typeof name === "string" && name !== "" ? name.toLowerCase() : undefined;
}

export class Http1Wire implements ClientWire {
  readonly isHttp2 = false;
  readonly socket: Socket;
  readonly #response: ServerResponse;

  constructor(socket: Socket, response: ServerResponse) {
    this.socket = socket;
    this.#response = response;
  }

  cut(): void {
    this.socket.destroy();
  }

  drop(): void {
    this.socket.destroy();
  }

  accept(reason: string, headers: RawHeaders, protocol: string): Duplex {
    this.#response.detachSocket(this.socket);
    let text = `HTTP/1.1 101 ${reason || "Switching Protocols"}\r\n`;
    for (let index = 0; index + 1 < headers.length; index += 2)
      text += `${headers[index]}: ${headers[index + 1]}\r\n`;
    this.socket.write(`${text}Connection: Upgrade\r\nUpgrade: ${protocol}\r\n\r\n`, "latin1");
    return this.socket;
  }
}
