import { ClocheError } from "@cloche/protocol";
import type { Exchange } from "./exchange.ts";

/**
 * Answers a request: the JSON body of a 200, or `undefined` if the handler writes the response itself (streams). Errors thrown get the
 * usual error body.
 */
export type Handler = (exchange: Exchange) => unknown;

export interface Route {
  method: "GET" | "HEAD" | "POST" | "PUT" | "DELETE";
  /** `:name` is one segment (percent-decoded into `params`), a last `*` the rest of the path (raw, in `params["*"]`). */
  path: string;
  handle: Handler;
}

export interface Match {
  handle: Handler;
  params: Record<string, string>;
}

/** Finds the route of a raw path. An exact path wins over a pattern of the same method: `POST /v1/store/batch` is no key. */
export class Router {
  readonly #exact = new Map<string, Map<string, Handler>>();
  readonly #patterns: { method: string; parts: string[]; handle: Handler }[] = [];

  constructor(routes: readonly Route[]) {
    for (const { method, path, handle } of routes) {
      if (/[:*]/.test(path)) this.#patterns.push({ method, parts: path.split("/"), handle });
      else {
        const methods = this.#exact.get(path) ?? new Map<string, Handler>();
        this.#exact.set(path, methods.set(method, handle));
      }
    }
  }

  /** Throws 404 for an unknown path, 405 for a known path with another method. */
  find(method: string, path: string): Match {
    const exact = this.#exact.get(path);
    const handle = exact?.get(method);
    if (handle !== undefined) return { handle, params: {} };
    const allowed = new Set(exact?.keys());
    for (const pattern of this.#patterns) {
      const params = match(pattern.parts, path);
      if (params === undefined) continue;
      if (pattern.method === method) return { handle: pattern.handle, params };
      allowed.add(pattern.method);
    }
    if (allowed.size > 0) throw ClocheError.methodNotAllowed(method, [...allowed]);
    throw new ClocheError("not_found", `there is no ${path.slice(0, 200)} in the data plane`);
  }
}

function match(parts: readonly string[], path: string): Record<string, string> | undefined {
  const params: Record<string, string> = {};
  let start = 0;
  for (const [index, part] of parts.entries()) {
    if (part === "*") {
      params["*"] = path.slice(start);
      return params;
    }
    const slash = path.indexOf("/", start);
    const last = index === parts.length - 1;
    if (last !== slash < 0) return undefined;
    const segment = last ? path.slice(start) : path.slice(start, slash);
    if (part.startsWith(":")) {
      if (segment === "") return undefined;
      params[part.slice(1)] = decodeSegment(segment);
    } else if (part !== segment) return undefined;
    start = slash + 1;
  }
  return params;
}

function decodeSegment(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    throw new ClocheError(
      "invalid_argument",
      `${segment.slice(0, 200)} in the path is not percent-encoded UTF-8`,
    );
  }
}
