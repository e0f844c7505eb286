import type { IncomingMessage } from "node:http";
import { ClocheError, portTunnelPath } from "@cloche/protocol";
import type { ControlSecret } from "./control-secret.ts";
import type { TokenVerifier } from "./token-verifier.ts";

export const controlPrefix = "/cloche.guest.v1.GuestService/";
export const healthPath = "/healthz";

/**
 * Who may call a path:
 *
 *   health check   anyone
 *   GuestService   the host, by the control secret, which is refused on all other paths
 *   port tunnel    an inner token for that port, which is refused on all other paths
 *   data plane     an inner token, which the edge makes of this sandbox's token; 503 while unassigned (`verifier` undefined)
 */
export function authorize(
  request: IncomingMessage,
  path: string,
  control: ControlSecret,
  verifier: TokenVerifier | undefined,
  nowMs: number,
): void {
  if (path === healthPath) return;
  if (path.startsWith(controlPrefix)) {
    if (!control.matches(bearer(request))) {
      throw new ClocheError(
        "unauthenticated",
        "only the host may call GuestService, with its control secret",
      );
    }
    return;
  }
  if (verifier === undefined) {
    throw new ClocheError("unavailable", "this machine is no sandbox's yet", { retryAfterSeconds: 1 });
  }
  const port = path.startsWith(portTunnelPath) ? Number(path.slice(portTunnelPath.length)) : undefined;
  verifier.check(bearer(request), nowMs, port);
}

function bearer(request: IncomingMessage): string {
  const match = /^Bearer +([^\s]+) *$/i.exec(request.headers.authorization ?? "");
  if (match?.[1] === undefined) {
    throw new ClocheError("unauthenticated", "the header Authorization: Bearer <inner token> is missing");
  }
  return match[1];
}
