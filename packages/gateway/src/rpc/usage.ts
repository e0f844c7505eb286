/** GetUsage: compute time of the team's sandboxes within a time range, deleted ones included. */
import { createHash } from "node:crypto";
import { ClocheError, isSandboxId, limits } from "@cloche/protocol";
import type { GetUsageRequest, SandboxUsage as SandboxUsageMessage } from "@cloche/protocol/public";
import { rfc3339 } from "@cloche/base";
import type { Database } from "../database/database.ts";
import type { SandboxUsage, UsageQuery } from "../database/usage.ts";
import { refuse } from "./fields.ts";

export interface UsageAnswer {
  usage: Omit<SandboxUsageMessage, "$typeName" | "$unknown">[];
  computeSeconds: number;
  from: string;
  to: string;
  nextPageToken: string;
}

export async function getUsage(
  database: Pick<Database, "usage" | "sandboxes">,
  teamId: string,
  request: GetUsageRequest,
  nowMs: number,
): Promise<UsageAnswer> {
  const { sandboxId } = request;
  const fromMs = timeOf("from", request.from) ?? 0;
  const toMs = Math.min(timeOf("to", request.to) ?? nowMs, nowMs);
  if (request.to !== "" && fromMs > (timeOf("to", request.to) ?? 0)) {
    throw refuse("from", request.from, "not after to");
  }
  if (sandboxId !== "") await checkKnown(database, teamId, sandboxId);
  const query: UsageQuery = { teamId, fromMs, toMs, ...(sandboxId !== "" && { sandboxId }) };
  const mark = markOf(request);
  const pageSize = Math.min(request.pageSize || limits.pageSize, limits.pageSize);
  const afterSandboxId = request.pageToken === "" ? "" : decodeToken(request.pageToken, mark);
  const found = await database.usage.list(query, { afterSandboxId, limit: pageSize + 1 });
  const page = found.slice(0, pageSize);
  const last = page.at(-1);
  return {
    usage: page.map(messageOf),
    computeSeconds: (await database.usage.totalMs(query)) / 1_000,
    from: fromMs === 0 ? "" : rfc3339(fromMs),
    to: rfc3339(toMs),
    nextPageToken: last !== undefined && found.length > page.length ? encodeToken(last.sandboxId, mark) : "",
  };
}

const messageOf = (usage: SandboxUsage) => ({
  sandboxId: usage.sandboxId,
  name: usage.name,
  createdBy: usage.createdBy,
  computeSeconds: usage.computeMs / 1_000,
  cpuSeconds: usage.cpuMs / 1_000,
  memoryMbSeconds: usage.memoryMbMs / 1_000,
  firstRanAt: rfc3339(usage.firstMs),
  lastRanAt: rfc3339(usage.lastMs),
});

/** Throws not_found for a sandbox that never was the team's. A deleted sandbox is known by its usage. */
async function checkKnown(
  { usage, sandboxes }: Pick<Database, "usage" | "sandboxes">,
  teamId: string,
  sandboxId: string,
): Promise<void> {
  const isKnown =
    isSandboxId(sandboxId) &&
    ((await sandboxes.get(sandboxId))?.teamId === teamId || (await usage.hasAny(teamId, sandboxId)));
  if (!isKnown) {
    throw new ClocheError(
      "not_found",
      `sandbox_id: there is no sandbox ${JSON.stringify(sandboxId.slice(0, 100))}`,
    );
  }
}

const timePattern = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)$/;

/** Unix milliseconds; undefined when the text is empty. */
function timeOf(field: string, text: string): number | undefined {
  if (text === "") return undefined;
  const ms = timePattern.test(text) ? Date.parse(text) : Number.NaN;
  if (Number.isNaN(ms) || ms < 0)
    throw refuse(field, text.slice(0, 100), "an RFC 3339 time such as 2026-01-31T00:00:00Z");
  return ms;
}

const markOf = ({ sandboxId, from, to }: GetUsageRequest): string =>
  createHash("sha256")
    .update(JSON.stringify([sandboxId, from, to]))
    .digest("hex")
    .slice(0, 16);

const encodeToken = (lastId: string, mark: string): string =>
  Buffer.from(`${lastId}.${mark}`).toString("base64url");

function decodeToken(token: string, mark: string): string {
  const [, lastId, itsMark] =
    /^(sbx-[a-z0-9]{20})\.([0-9a-f]{16})$/.exec(Buffer.from(token, "base64url").toString()) ?? [];
  if (lastId === undefined) {
    throw refuse("page_token", token.slice(0, 100), "next_page_token of the page before");
  }
  if (itsMark !== mark) {
    throw new ClocheError(
      "invalid_argument",
      "page_token belongs to another query; keep sandbox_id, from and to as they were",
    );
  }
  return lastId;
}
