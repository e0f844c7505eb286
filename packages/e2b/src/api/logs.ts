import type { AuditEntry } from "@cloche/sdk";
import type { Fields } from "../http.ts";
import { type ApiAnswer, type ApiCall, ok, wholeNumber } from "./api-call.ts";
import { named } from "./waiting.ts";

const most = 1_000;

/** `GET /v2/sandboxes/{id}/logs`: the sandbox's audit entries. Output of programs is not collected. */
export async function logs(call: ApiCall): Promise<ApiAnswer> {
  return ok({ logs: (await entriesOf(call)).map(entry) });
}

/** `GET /sandboxes/{id}/logs`, the older form. */
export async function oldLogs(call: ApiCall): Promise<ApiAnswer> {
  const entries = await entriesOf(call);
  const lines = entries.map(({ at, action, result }) => ({ timestamp: at, line: `${action}: ${result}` }));
  return ok({ logs: lines, logEntries: entries.map(entry) });
}

async function entriesOf(call: ApiCall): Promise<AuditEntry[]> {
  const { gateway, query } = call;
  const { id } = await named(call);
  const limit = wholeNumber(query, "limit", { max: most }) ?? most;
  const fromMs =
    wholeNumber(query, "cursor", { max: Number.MAX_SAFE_INTEGER }) ??
    wholeNumber(query, "start", { max: Number.MAX_SAFE_INTEGER }) ??
    0;
  const { entries } = await gateway.listAuditEntries({ subject: id, page_size: most });
  const isBackward = query.get("direction") === "backward";
  const search = query.get("search") ?? "";
  const level = query.get("level");
  const found = entries
    .filter((one) => isBackward || Date.parse(one.at) >= fromMs)
    .filter((one) => level === null || level === "debug" || level === levelOf(one) || level === "info")
    .filter(({ action, detail }) => `${action} ${detail}`.includes(search));
  // The gateway answers the newest entries first.
  return (isBackward ? found : found.toReversed()).slice(0, limit);
}

const levelOf = ({ result }: AuditEntry): string => (result === "ok" ? "info" : "error");

const entry = (one: AuditEntry): Fields => ({
  timestamp: one.at,
  level: levelOf(one),
  message: one.action,
  fields: { actor: one.actor, result: one.result, detail: one.detail, requestID: one.request_id },
});
