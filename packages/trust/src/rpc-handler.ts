/**
 * Handles one call of the cluster's port, from Node's HTTP/2 request and response to Connect's handlers and back. A call
 * that breaks, which strangers can cause at will, ends its own stream and makes at most a short line of the log.
 */
import { constants, type Http2ServerRequest, type Http2ServerResponse } from "node:http2";
import { boundCallTimeout, type Log } from "@cloche/base";
import { type ConnectRouter, type ContextValues, createConnectRouter } from "@connectrpc/connect";
import {
  compressionBrotli,
  compressionGzip,
  universalRequestFromNodeRequest,
  universalResponseToNodeResponse,
} from "@connectrpc/connect-node";

export interface RpcHandlerParts {
  routes: (router: ConnectRouter) => void;
  readMaxBytes: number;
  contextValues: (request: Http2ServerRequest) => ContextValues;
  /** A bounded log. */
  log: Log;
}

export type RpcHandler = (request: Http2ServerRequest, response: Http2ServerResponse) => void;

export function rpcHandler({ routes, readMaxBytes, contextValues, log }: RpcHandlerParts): RpcHandler {
  const router = createConnectRouter({
    readMaxBytes,
    acceptCompression: [compressionGzip, compressionBrotli],
  });
  routes(router);
  const handlers = new Map(router.handlers.map((handler) => [handler.requestPath, handler]));

  async function answer(request: Http2ServerRequest, response: Http2ServerResponse): Promise<void> {
    const handler = handlers.get(request.url?.split("?", 1)[0] ?? "");
    if (handler === undefined) {
      response.writeHead(404);
      response.end();
      return;
    }
    boundCallTimeout(request.headers);
    const asked = universalRequestFromNodeRequest(request, response, undefined, contextValues(request));
    await universalResponseToNodeResponse(await handler(asked), response);
  }

  return (request, response) => {
    answer(request, response).catch((err: unknown) => {
      log.debug({ err, path: request.url }, "a call at the cluster's port broke");
      response.stream.close(constants.NGHTTP2_INTERNAL_ERROR);
    });
  };
}
