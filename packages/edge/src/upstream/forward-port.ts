/**
 * Chooses the protocol for a server on a port. gRPC needs HTTP/2. All other requests use HTTP/1.1, which nearly every
 * server speaks. A server that speaks only HTTP/2 shows that by its first byte, and gets HTTP/2 from then on.
 */
import type { EdgeLimits } from "../edge-limits.ts";
import type { Exchange } from "../exchange/exchange.ts";
import { forward, type Forwarding } from "./forward.ts";
import { forwardHttp2 } from "./forward-http2.ts";
import type { Port } from "./upstreams.ts";

export type PortForwarding = Omit<Forwarding, "pool" | "owner" | "overHttp2">;

const grpc = /^application\/grpc(?:$|[+;])/i;

export function forwardToPort(
  exchange: Exchange,
  port: Port,
  shared: PortForwarding,
  limits: EdgeLimits,
): void {
  const forwarding: Forwarding = { ...shared, pool: port.http1, owner: exchange.wire.socket };
  const isUpgrade = exchange.upgradeFirst !== undefined;
  const isGrpc = exchange.wire.isHttp2 && grpc.test(exchange.request.headers["content-type"] ?? "");
  if (isGrpc) return forwardHttp2(exchange, forwarding, port.http2, {});
  const overHttp1 = (): void =>
    forward(exchange, { ...forwarding, ...(!isUpgrade && { overHttp2 }) }, limits);
  const overHttp2 = (first: readonly Buffer[] | undefined): void => {
    port.speaksHttp2Alone = true;
    if (first !== undefined) return forwardHttp2(exchange, forwarding, port.http2, { first });
    const cause = new Error("more of the body was sent than is kept");
    exchange.fail(shared.explain({ kind: "http2", reused: false, answered: false, cause }));
  };
  if (!port.speaksHttp2Alone || isUpgrade) return overHttp1();
  const onRefused = (): void => {
    port.speaksHttp2Alone = false;
    overHttp1();
  };
  forwardHttp2(exchange, forwarding, port.http2, { onRefused });
}
