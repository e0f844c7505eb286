import { statfs } from "node:fs/promises";
import { join } from "node:path";
import { ClocheConnectionError } from "@cloche/sdk";

export interface DiskPool {
  total_bytes: number;
  available_bytes: number;
}

const timeoutMs = 10_000;

/** The pool of a service of this machine; undefined: it cannot be seen. */
export async function poolOfHome(home: string): Promise<DiskPool | undefined> {
  const pool = await statfs(join(home, "pool")).catch(() => undefined);
  return pool && { total_bytes: pool.blocks * pool.bsize, available_bytes: pool.bavail * pool.bsize };
}

/** The pool by the metrics of an operator's port (CLOCHE_METRICS_PORT). Throws ClocheConnectionError. */
export async function poolOfMetrics(url: string, signal: AbortSignal): Promise<DiskPool> {
  const fail = (why: string, cause?: unknown): never => {
    throw new ClocheConnectionError(`${url} shows no disk pool: ${why}`, { code: "unreachable", cause });
  };
  if (!URL.canParse(url)) fail("it must be the URL of an operator's port, as http://127.0.0.1:7090");
  const signals = AbortSignal.any([signal, AbortSignal.timeout(timeoutMs)]);
  const text = await fetch(new URL("/metrics", url), { signal: signals })
    .then((answer) => (answer.ok ? answer.text() : fail(`it answers ${answer.status}`)))
    .catch((error: unknown) =>
      error instanceof ClocheConnectionError ? Promise.reject(error) : fail("no answer", error),
    );
  const bytesOf = (kind: string): number => {
    const [, value] = new RegExp(`^cloche_pool_bytes\\{kind="${kind}"\\} (\\S+)$`, "m").exec(text) ?? [];
    return value === undefined ? fail("cloche_pool_bytes is missing there") : Number(value);
  };
  return { total_bytes: bytesOf("total"), available_bytes: bytesOf("available") };
}
