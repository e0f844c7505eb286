/** A load generator that costs little itself: bare TLS connections, one request on each at a time, answers told by their known length. */
import { once } from "node:events";
import net from "node:net";
import tls from "node:tls";

export class LoadClient {
  readonly #socket: net.Socket;
  readonly #request: Buffer;
  #done: ((error?: Error) => void) | undefined;
  #received = "";

  static async connect(
    target: { port: number; tls?: { ca: string; servername: string } },
    request: string,
  ): Promise<LoadClient> {
    const { port } = target;
    const socket =
      target.tls === undefined
        ? net.connect({ port, host: "127.0.0.1", noDelay: true })
        : tls.connect({ port, host: "127.0.0.1", ALPNProtocols: ["http/1.1"], ...target.tls });
    await once(socket, target.tls === undefined ? "connect" : "secureConnect");
    return new LoadClient(socket, request);
  }

  constructor(socket: net.Socket, request: string) {
    this.#socket = socket;
    this.#request = Buffer.from(request);
    socket.on("data", (chunk: Buffer) => this.#take(chunk.toString("latin1")));
    socket.on("error", (error) => this.#done?.(error));
    socket.on("close", () => this.#done?.(new Error("the server closed the connection")));
  }

  #take(text: string): void {
    this.#received += text;
    if (!this.#received.endsWith("\r\n\r\n{}")) return;
    const good = this.#received.startsWith("HTTP/1.1 200 ");
    this.#received = "";
    this.#done?.(good ? undefined : new Error("not a 200"));
  }

  /** One request and its answer, `{}`. */
  ask(): Promise<void> {
    return new Promise((resolve, reject) => {
      if (this.#socket.destroyed) return reject(new Error("the connection is closed"));
      this.#done = (error) => {
        this.#done = undefined;
        if (error === undefined) resolve();
        else reject(error);
      };
      this.#socket.write(this.#request);
    });
  }

  /** Requests back to back until `left.count` is used up by all clients together; without a promise each. */
  drain(left: { count: number }): Promise<void> {
    return new Promise((resolve, reject) => {
      if (this.#socket.destroyed) return reject(new Error("the connection is closed"));
      const next = (error?: Error): void => {
        if (error !== undefined) return reject(error);
        if (left.count <= 0) {
          this.#done = undefined;
          return resolve();
        }
        left.count -= 1;
        this.#socket.write(this.#request);
      };
      this.#done = next;
      next();
    });
  }

  close(): void {
    this.#done = undefined;
    this.#socket.destroy();
  }
}
