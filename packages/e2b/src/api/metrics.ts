import type { MetricsSample, SandboxInfo } from "@cloche/sdk";
import { badField } from "../e2b-error.ts";
import type { Fields } from "../http.ts";
import { type ApiAnswer, type ApiCall, ok, wholeNumber } from "./api-call.ts";
import { named } from "./waiting.ts";

const mebibyte = 1_048_576;
const mostSandboxes = 100;
const unixSeconds = { max: Number.MAX_SAFE_INTEGER };

/** `GET /sandboxes/{id}/metrics`: samples of the last hour and the present one, oldest first, within `start` and `end` (Unix seconds). */
export async function metrics(call: ApiCall): Promise<ApiAnswer> {
  const info = await named(call);
  const start = wholeNumber(call.query, "start", unixSeconds) ?? 0;
  const end = wholeNumber(call.query, "end", unixSeconds) ?? Number.POSITIVE_INFINITY;
  const { now, history } = await call.gateway.getSandboxMetrics(info.id);
  const samples = [...history, now].map((sample) => toMetric(info, sample));
  return ok(samples.filter(({ timestampUnix }) => timestampUnix >= start && timestampUnix <= end));
}

/** `GET /sandboxes/metrics?sandbox_ids=a,b`: the present use of each. Sandboxes that the team does not have are left out. */
export async function metricsOfMany({ gateway, sandboxes, query }: ApiCall): Promise<ApiAnswer> {
  const ids = [...new Set(query.getAll("sandbox_ids").flatMap((text) => text.split(",")))].filter(Boolean);
  if (ids.length === 0 || ids.length > mostSandboxes)
    throw badField("sandbox_ids", ids.length, `1 to ${mostSandboxes} ids, separated by commas`);
  const pairs = await Promise.all(
    ids.map(async (id): Promise<[string, Fields] | undefined> => {
      const info = await sandboxes.find(gateway, id);
      return info && [id, toMetric(info, (await gateway.getSandboxMetrics(id)).now)];
    }),
  );
  return ok({ sandboxes: Object.fromEntries(pairs.filter((pair) => pair !== undefined)) });
}

function toMetric(info: SandboxInfo, sample: MetricsSample): Fields & { timestampUnix: number } {
  return {
    timestamp: sample.at,
    timestampUnix: Math.floor(Date.parse(sample.at) / 1_000),
    cpuCount: Math.max(1, Math.ceil(info.cpus)),
    cpuUsedPct: Math.round(sample.cpu_share * 10_000) / 100,
    memUsed: sample.memory_bytes,
    memTotal: info.memory_mb * mebibyte,
    // Cached memory is counted as used.
    memCache: 0,
    diskUsed: sample.disk_bytes,
    diskTotal: info.disk_mb * mebibyte,
  };
}
