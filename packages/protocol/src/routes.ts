/**
 * All routes of the data plane, and who answers each: the edge routes by this list, and the tests demand a success case
 * and an auth-refusal case for each route. `:name` is one path segment, `*` the rest of the path.
 */
export interface DataPlaneRoute {
  method: "GET" | "HEAD" | "POST" | "PUT" | "DELETE";
  path: string;
  answeredBy: "agent" | "host" | "edge";
}

const route = (
  method: DataPlaneRoute["method"],
  path: string,
  answeredBy: DataPlaneRoute["answeredBy"] = "agent",
): DataPlaneRoute => ({ method, path, answeredBy });

export const dataPlaneRoutes: readonly DataPlaneRoute[] = [
  route("POST", "/v1/exec"),
  route("POST", "/v1/exec/stdin"),
  route("POST", "/v1/processes"),
  route("GET", "/v1/processes"),
  route("GET", "/v1/processes/:id"),
  route("DELETE", "/v1/processes/:id"),
  route("POST", "/v1/processes/:id/signal"),
  route("POST", "/v1/processes/:id/resize"),
  route("POST", "/v1/processes/:id/stdin"),
  route("DELETE", "/v1/processes/:id/stdin"),
  route("POST", "/v1/processes/:id/wait"),
  route("GET", "/v1/processes/:id/output"),
  route("GET", "/v1/processes/:id/attach"),
  route("GET", "/v1/ports/:port/connect"),
  route("PUT", "/v1/files"),
  route("POST", "/v1/files"),
  route("GET", "/v1/files"),
  route("HEAD", "/v1/files"),
  route("DELETE", "/v1/files"),
  route("GET", "/v1/files/exists"),
  route("GET", "/v1/files/list"),
  route("POST", "/v1/files/mkdir"),
  route("POST", "/v1/files/move"),
  route("POST", "/v1/files/copy"),
  route("POST", "/v1/files/chmod"),
  route("POST", "/v1/files/chown"),
  route("GET", "/v1/files/stat"),
  route("GET", "/v1/files/watch"),
  route("POST", "/v1/files/link", "edge"),
  route("GET", "/v1/files/link", "edge"),
  route("HEAD", "/v1/files/link", "edge"),
  route("PUT", "/v1/files/link", "edge"),
  route("POST", "/v1/files/archive"),
  route("GET", "/v1/files/archive"),
  route("POST", "/v1/checkpoint", "host"),
  route("GET", "/v1/checkpoint/list", "host"),
  route("POST", "/v1/checkpoint/wait", "host"),
  route("DELETE", "/v1/checkpoint/:id", "host"),
  route("POST", "/v1/restore", "host"),
  route("GET", "/v1/services"),
  route("GET", "/v1/services/:name"),
  route("PUT", "/v1/services/:name"),
  route("DELETE", "/v1/services/:name"),
  route("POST", "/v1/services/:name/start"),
  route("POST", "/v1/services/:name/stop"),
  route("POST", "/v1/services/:name/exec"),
  route("GET", "/v1/services/:name/logs"),
  route("PUT", "/v1/store/*"),
  route("GET", "/v1/store/*"),
  route("DELETE", "/v1/store/*"),
  route("GET", "/v1/store"),
  route("POST", "/v1/store/batch"),
];

const literalPaths = new Map<string, string[]>();
for (const { method, path } of dataPlaneRoutes) {
  if (!/[:*]/.test(path)) literalPaths.set(path, [...(literalPaths.get(path) ?? []), method]);
}
const patterns = dataPlaneRoutes
  .filter(({ path }) => /[:*]/.test(path))
  .map(({ method, path }) => ({
    name: `${method} ${path}`,
    method,
    takesRest: path.endsWith("*"),
    pattern: new RegExp(`^${path.replaceAll(/:[a-z]+/g, "[^/]+").replace("*", ".+")}$`),
  }));

/** A literal path of the list never matches `:name` (`/v1/checkpoint/list`), but may match `*` (`/v1/store/batch`). */
const matches = ({ takesRest, pattern }: (typeof patterns)[number], path: string): boolean =>
  (takesRest || !literalPaths.has(path)) && pattern.test(path);

/** The route of a request, such as `PUT /v1/store/*`; undefined: none. From a closed set, for metrics. */
export function dataPlaneRouteName(method: string, path: string): string | undefined {
  if (literalPaths.get(path)?.includes(method) === true) return `${method} ${path}`;
  return patterns.find((one) => one.method === method && matches(one, path))?.name;
}

/** The methods of a path, for `Allow`; empty: there is no such path. */
export function allowedMethods(path: string): string[] {
  const byPattern = patterns.filter((one) => matches(one, path)).map(({ method }) => method);
  return [...new Set([...(literalPaths.get(path) ?? []), ...byPattern])];
}

/** Whether the host answers this data plane path (checkpoints and restore), not the agent. */
export function isHostPath(path: string): boolean {
  return path === "/v1/restore" || path === "/v1/checkpoint" || path.startsWith("/v1/checkpoint/");
}

/**
 * Headers between the parts. The edge drops clients' `x-cloche-*` headers (but the one of known-fields.ts), and sets the request id itself.
 */
export const internalHeaders = {
  requestId: "x-request-id",
  execId: "x-cloche-exec-id",
  sandboxId: "x-cloche-sandbox-id",
  /** Gateway to host: fence.ts. */
  hostGeneration: "x-cloche-host-generation",
  operation: "x-cloche-operation",
} as const;

/** Edge -> agent, authorised by the same data plane token as the exec it aborts. */
export const abortExecPath = "/cloche/exec-abort";
/** Edge -> agent: HTTP Upgrade: cloche-port tunnels a TCP stream to 127.0.0.1:<port> in the sandbox. */
export const portTunnelPath = "/cloche/port/";

/** Where the edge makes links to files (POST, with a token) and serves them: `/v1/files/link?token=…`. */
export const fileLinkPath = "/v1/files/link";

/** Where the edge redeems a one-time port link: `https://<port>-<id>.<base domain>/__cloche/link?token=…&path=…`. */
export const portLinkPath = "/__cloche/link";
