/** ListAuditEntries: the team's audit log, newest first, by pages. */
import { rfc3339 } from "@cloche/base";
import { limits } from "@cloche/protocol";
import type { ListAuditEntriesRequest } from "@cloche/protocol/public";
import type { Audit } from "../database/audit.ts";
import { refuse, wholeWithin } from "./fields.ts";
import { fittingPage } from "./page-bytes.ts";

export async function listAuditEntries(
  audit: Audit,
  teamId: string,
  request: Pick<ListAuditEntriesRequest, "subject" | "pageSize" | "pageToken">,
) {
  const { subject, pageToken } = request;
  const asked = wholeWithin("page_size", request.pageSize, 0, limits.pageSize);
  const pageSize = asked === 0 ? limits.auditPageSizeDefault : asked;
  // A page ends with an entry; the token is its id.
  if (pageToken !== "" && !/^aud-[0-9a-z-]{1,100}$/.test(pageToken))
    throw refuse("page_token", pageToken, "next_page_token of the page before");
  const found = await audit.list({
    teamId,
    limit: pageSize + 1,
    ...(subject !== "" && { subject }),
    ...(pageToken !== "" && { beforeId: pageToken }),
  });
  const entries = fittingPage(
    found
      .slice(0, pageSize)
      .map(({ id, atMs, actor, action, subject: about, requestId, result, detail }) => ({
        id,
        at: rfc3339(atMs),
        actor,
        action,
        subject: about,
        requestId,
        result,
        detail,
      })),
  );
  return { entries, nextPageToken: found.length > entries.length ? (entries.at(-1)?.id ?? "") : "" };
}
