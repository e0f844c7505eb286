/**
 * Requests that an HTTP/1.1 client sends before it has the answer to the one before (pipelining). Node begins all of
 * them at once and keeps finished answers until their turn. Here a request begins when the kernel has taken the answer
 * before it, so that a client that does not read has one request under way on each connection.
 */
import type { IncomingMessage, Server, ServerResponse } from "node:http";
import type { Socket } from "node:net";
import { listenerBounds } from "./bounds.ts";

type Begin = () => void;

/** From now on the server's `request` event comes when it is the request's turn. Call it before the first connection. */
export function answerInTurn(server: Server, most: number = listenerBounds.pipelinedRequests): void {
  /** For each connection whose request is under way: those after it. */
  const waiting = new WeakMap<Socket, Begin[]>();
  const emit = server.emit.bind(server) as (...args: unknown[]) => boolean;

  function begin(socket: Socket, request: IncomingMessage, response: ServerResponse): void {
    response.once("close", () => {
      const next = waiting.get(socket)?.shift();
      if (next === undefined) return void waiting.delete(socket);
      // Other connections are read in between: answers may wait for nothing.
      setImmediate(() => {
        // After a last answer the connection ends.
        if (socket.writable) next();
      });
    });
    emit("request", request, response);
  }

  server.emit = (event: string, ...args: unknown[]): boolean => {
    if (event !== "request") return emit(event, ...args);
    const [request, response] = args as [IncomingMessage, ServerResponse];
    const { socket } = request;
    const queue = waiting.get(socket);
    if (queue === undefined) {
      waiting.set(socket, []);
      begin(socket, request, response);
    } else if (queue.length >= most) socket.destroy();
    else queue.push(() => begin(socket, request, response));
    return true;
  };
}
