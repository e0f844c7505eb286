/**
 * Serves the data plane's checkpoint and restore routes to edges on other computers: HTTP/1.1 on connections that trust's ClusterPort
 * accepted, which lets only edges in. Two headers name the sandbox and the request; an edge in this process passes them in memory.
 */
import { createServer, type ServerResponse } from "node:http";
import type { Socket } from "node:net";
import { sendError } from "@cloche/base";
import { ClocheError, internalHeaders, isSandboxId, limits } from "@cloche/protocol";
import type { HostDataPlane } from "./data-plane.ts";

const requestIdLengthMax = 128;

export interface DataPlaneServer {
  /** Serves HTTP/1.1 on the connection. */
  serve(socket: Socket): void;
  /** Takes no further requests; waits up to `graceMs` for those under way. */
  drain(graceMs: number): Promise<void>;
}

export function serveDataPlane(dataPlane: HostDataPlane): DataPlaneServer {
  const open = new Set<ServerResponse>();
  let onEnded = (): void => undefined;
  const server = createServer(
    {
      maxHeaderSize: limits.headerBytes,
      headersTimeout: limits.headersTimeoutMs,
      // No limit: a wait for a checkpoint is long, and edges close connections that they do not need.
      requestTimeout: 0,
      keepAliveTimeout: limits.idleConnectionMs,
      requireHostHeader: false,
    },
    (request, response) => {
      const sandboxId = request.headers[internalHeaders.sandboxId];
      const requestId = request.headers[internalHeaders.requestId];
      if (typeof sandboxId !== "string" || !isSandboxId(sandboxId))
        return void sendError(response, new ClocheError("invalid_argument", "the request names no sandbox"));
      if (typeof requestId !== "string" || requestId.length > requestIdLengthMax)
        return void sendError(response, new ClocheError("invalid_argument", "the request has no id"));
      open.add(response);
      response.once("close", () => {
        open.delete(response);
        if (open.size === 0) onEnded();
      });
      dataPlane(request, response, { sandboxId, requestId });
    },
  );
  // The server never listens itself; this event starts its checks for slow and idle connections.
  server.emit("listening");
  return {
    serve: (socket) => void server.emit("connection", socket),
    async drain(graceMs) {
      server.close();
      if (open.size === 0) return;
      await new Promise<void>((resolve) => {
        onEnded = resolve;
        setTimeout(resolve, graceMs).unref();
      });
    },
  };
}
