import type { ListSandboxesRequest, SandboxInfo } from "@cloche/sdk";
import { badField, E2bError } from "../e2b-error.ts";
import { type ApiAnswer, type ApiCall, ok, wholeNumber } from "./api-call.ts";
import { type E2bState, listed, stateOf, templateOf } from "./sandbox-view.ts";

const pageDefault = 100;
/** Characters of metadata that a list without pages may have. */
const unpagedBytes = 8 * 1_048_576;
const states: Record<E2bState, SandboxInfo["state"][]> = {
  running: ["SANDBOX_STATE_CREATING", "SANDBOX_STATE_RUNNING", "SANDBOX_STATE_RESUMING"],
  paused: ["SANDBOX_STATE_SUSPENDING", "SANDBOX_STATE_SUSPENDED"],
};

/** `GET /v2/sandboxes`: newest first unless `order=asc`; the header `x-next-token` leads to the next page. */
export async function list({ gateway, query }: ApiCall): Promise<ApiAnswer> {
  const limit = wholeNumber(query, "limit", { min: 1, max: pageDefault }) ?? pageDefault;
  const request = filters(query);
  const fits = locally(query);
  const found: SandboxInfo[] = [];
  let pageToken = query.get("nextToken") ?? "";
  do {
    const page = await gateway.listSandboxes({
      ...request,
      page_size: limit - found.length,
      page_token: pageToken,
    });
    found.push(...page.sandboxes.filter(fits));
    pageToken = page.next_page_token;
  } while (pageToken !== "" && found.length < limit);
  return ok(found.map(listed), pageToken === "" ? {} : { "x-next-token": pageToken });
}

/** `GET /sandboxes`, the older form: all running sandboxes. */
export async function listRunning({ gateway, query }: ApiCall): Promise<ApiAnswer> {
  const found: SandboxInfo[] = [];
  let bytes = 0;
  for await (const info of gateway.allSandboxes({ ...filters(query), states: states.running })) {
    found.push(info);
    bytes += JSON.stringify(info.metadata).length;
    if (bytes > unpagedBytes)
      throw new E2bError(
        "resource_exhausted",
        "the sandboxes have more than 8 MiB of metadata; use GET /v2/sandboxes, whose lists have pages",
      );
  }
  return ok(found.map(listed));
}

function filters(query: URLSearchParams): ListSandboxesRequest {
  const wanted = query.getAll("state").flatMap((text) => text.split(","));
  const known = Object.keys(states) as E2bState[];
  for (const one of wanted)
    if (!known.includes(one as E2bState)) throw badField("state", one, known.join(" or "));
  const order = query.get("order") ?? "desc";
  if (order !== "asc" && order !== "desc") throw badField("order", order, "asc or desc");
  return {
    states: (wanted.length === 0 ? known : (wanted as E2bState[])).flatMap((one) => states[one]),
    order_by: order === "asc" ? "created_at" : "-created_at",
    metadata: metadataOf(query.get("metadata") ?? ""),
  };
}

/** The filters that the gateway does not have. */
function locally(query: URLSearchParams): (info: SandboxInfo) => boolean {
  const startedAfter = query.get("startedAfter");
  const template = query.get("template");
  const afterMs = startedAfter === null ? Number.NEGATIVE_INFINITY : Date.parse(startedAfter);
  if (Number.isNaN(afterMs))
    throw badField("startedAfter", startedAfter, "a time such as 2026-01-31T12:00:00Z");
  return (info) =>
    stateOf(info) !== undefined &&
    Date.parse(info.created_at) >= afterMs &&
    (template === null || template === templateOf(info) || template === info.template);
}

/** Reads `a=b&c=d`, whose names and values are percent-encoded a second time. */
function metadataOf(text: string): Record<string, string> {
  const decoded = (part: string): string => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  };
  return Object.fromEntries(
    [...new URLSearchParams(text)].map(([name, value]) => [decoded(name), decoded(value)]),
  );
}
