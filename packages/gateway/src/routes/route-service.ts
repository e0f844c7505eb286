/** cloche.edge.v1.RouteService: routes, keys, wake-ups and one-time port links for the edge. */
import { createHash } from "node:crypto";
import { ClocheError, internalHeaders, limits } from "@cloche/protocol";
import { RouteEvent_Kind, type RouteService } from "@cloche/protocol/edge";
import type { HandlerContext, ServiceImpl } from "@connectrpc/connect";
import type { Database } from "../database/database.ts";
import type { Fleet } from "../hosts/fleet.ts";
import { answering } from "../errors.ts";
import type { AuditLog } from "../lifecycle/audit-log.ts";
import type { Lifecycle } from "../lifecycle/lifecycle.ts";
import type { Records } from "../lifecycle/records.ts";
import type { TokenIssuer } from "../tokens/token-issuer.ts";
import type { RouteTable } from "./route-table.ts";

export interface RouteServiceDependencies {
  table: RouteTable;
  lifecycle: Lifecycle;
  fleet: Fleet;
  records: Records;
  portLinks: Database["portLinks"];
  fileLinks: Database["fileLinks"];
  tokens: TokenIssuer;
  audit: AuditLog;
  nowMs: () => number;
  /** Aborts when the gateway closes: streams then end. */
  closed: AbortSignal;
}

const fileLinkId = /^[\w-]{1,64}$/;
/** The edge's clock, which the expiry is of, may be an hour ahead. */
const fileLinkMsMax = (limits.fileLinkSeconds + 3_600) * 1_000;

const misusedLinksMax = 1_000;

export const linkTokenHash = (token: string): string => createHash("sha256").update(token).digest("hex");

// oxlint-disable-next-line max-lines-per-function -- a table of methods, a few lines each
export function routeService(needs: RouteServiceDependencies): ServiceImpl<typeof RouteService> {
  const { table, lifecycle, tokens } = needs;
  const misused = new Misused();
  const keysEvent = () => ({
    kind: RouteEvent_Kind.KEYS,
    keys: {
      issuer: tokens.issuer,
      keys: tokens.verificationKeys.map(({ kid, jwk }) => ({ kid, jwkJson: JSON.stringify(jwk) })),
    },
  });
  return {
    async *watchRoutes(_request, context) {
      const watcher = table.watch(AbortSignal.any([context.signal, needs.closed]));
      yield keysEvent();
      for (const route of table.all()) yield { kind: RouteEvent_Kind.SET, route };
      yield { kind: RouteEvent_Kind.SYNCED };
      for await (const change of watcher) {
        if (change.kind === "keys") yield keysEvent();
        else if (change.kind === "set") yield { kind: RouteEvent_Kind.SET, route: change.route };
        else yield { kind: RouteEvent_Kind.REMOVE, route: { sandboxId: change.sandboxId } };
      }
    },

    wakeSandbox: (request, context) =>
      answering(async () => {
        await lifecycle.wake(request.sandboxId, requestIdOf(context));
        const route = table.get(request.sandboxId);
        if (route === undefined) throw new ClocheError("not_found", "the sandbox was deleted meanwhile");
        return route;
      }),

    useFileLink: ({ sandboxId, linkId, expiresAtUnixMs }) =>
      answering(async () => {
        const expiresAtMs = Number(expiresAtUnixMs);
        // Each used link is a row until it expires.
        if (!fileLinkId.test(linkId) || expiresAtMs > needs.nowMs() + fileLinkMsMax)
          throw new ClocheError("invalid_argument", "no file link has such an id, or lasts so long");
        if ((await needs.records.get(sandboxId)) === undefined)
          throw new ClocheError("not_found", "the sandbox is deleted");
        const link = { id: linkId, sandboxId, expiresAtMs };
        if (!(await needs.fileLinks.use(link, needs.nowMs())))
          throw new ClocheError("already_exists", "the link was used before");
        return {};
      }),

    redeemPortLink: (request, context) =>
      answering(async () => {
        const hash = linkTokenHash(request.linkToken);
        const link = await needs.portLinks.find(hash);
        const note = async (result: string): Promise<void> => {
          if (link === undefined) return;
          const caller = { teamId: link.teamId, actor: "link", requestId: requestIdOf(context) };
          const detail = `port ${link.port}`;
          await needs.audit.write(
            needs.audit.entry(caller, "port_link.redeem", link.sandboxId, result, detail),
          );
        };
        const fits = link?.sandboxId === request.sandboxId && link.port === request.port;
        if (link === undefined || !fits || link.expiresAtMs <= needs.nowMs()) {
          if (misused.isNew(hash)) await note("unauthenticated");
          throw noSuchLink();
        }
        const record = await needs.records.get(link.sandboxId);
        if (record === undefined) throw new ClocheError("not_found", "the sandbox is deleted");
        lifecycle.check(record, "issue_token");
        // Last, and atomic: a link that was shown in vain is not used up, and of two callers one gets in.
        if ((await needs.portLinks.take(hash)) === undefined) throw noSuchLink();
        const token = await tokens.issueForPort(link.teamId, link.sandboxId, link.port);
        await note("ok");
        return { cookieToken: token.jwt, expiresAtUnix: token.expiresAtUnix };
      }),
  };
}

const noSuchLink = (): ClocheError =>
  new ClocheError(
    "unauthenticated",
    "the link is unknown, used or expired; get a fresh one with IssuePortLink",
  );

/** Links of which a misuse is in the audit log already: who has a link cannot fill the team's log with it. */
class Misused {
  readonly #hashes = new Set<string>();

  isNew(hash: string): boolean {
    if (this.#hashes.has(hash)) return false;
    if (this.#hashes.size >= misusedLinksMax) this.#hashes.clear();
    this.#hashes.add(hash);
    return true;
  }
}

const requestIdOf = (context: HandlerContext): string =>
  context.requestHeader.get(internalHeaders.requestId) ?? "";
