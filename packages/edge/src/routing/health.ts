/**
 * `/healthz` and `/readyz` of the edge itself, on the base domain and on IP addresses, for load balancers. On a
 * sandbox's own domain, and in a request that names a sandbox by a header, these paths belong to the sandbox.
 */
import { ClocheError } from "@cloche/protocol";
import type { Exchange } from "../exchange/exchange.ts";
import { sandboxIdHeader, sharedHostname } from "./shared-address.ts";

export function isHealthCheck(exchange: Exchange, baseDomain: string): boolean {
  const { path } = exchange;
  if (path !== "/healthz" && path !== "/readyz") return false;
  const { headers } = exchange.request;
  const isOwn =
    headers[sandboxIdHeader] === undefined &&
    sharedHostname(headers.host ?? "", baseDomain.toLowerCase()) !== undefined;
  exchange.isHealthCheck = isOwn;
  return isOwn;
}

/** `ready` throws a ClocheError that names what is not ready. */
export function answerHealth(exchange: Exchange, ready: () => void): void {
  const { method } = exchange.request;
  if (method !== "GET" && method !== "HEAD") {
    exchange.fail(ClocheError.methodNotAllowed(method, ["GET", "HEAD"]));
    return;
  }
  try {
    if (exchange.path === "/readyz") ready();
  } catch (error) {
    exchange.fail(ClocheError.from(error));
    return;
  }
  const body = Buffer.from('{"status":"ok"}');
  exchange.begin(200, undefined, ["content-type", "application/json", "content-length", String(body.length)]);
  if (method === "HEAD") exchange.end();
  else exchange.end(body);
}
