/**
 * A port's answer at the shared address, where all sandboxes have the same origin for a browser. A page of one sandbox
 * must not reach another's pages or leave anything for them: the document is sandboxed (an origin of its own, no
 * storage), and headers that hold for the whole origin are dropped. Redirects to paths that begin with / get the port's
 * prefix.
 */
import type { RawHeaders } from "../exchange/headers.ts";
import { varyByTarget } from "./shared-address.ts";

/** Without allow-same-origin. */
const documentPolicy = "sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts";

/** Headers that hold for all paths of an origin; a browser even sends passwords to every server that asks there. */
const ofWholeOrigin = new Set([
  "set-cookie",
  "set-cookie2",
  "service-worker-allowed",
  "clear-site-data",
  "alt-svc",
  "strict-transport-security",
  "nel",
  "report-to",
  "www-authenticate",
  "accept-ch",
  "critical-ch",
  "set-login",
  "sec-session-registration",
]);

/** `prefix`: what precedes the port's paths. `host`: the request's Host header. */
export function sharedPortAnswer(
  headers: RawHeaders,
  { prefix, host }: { prefix: string; host: string },
): RawHeaders {
  const kept: RawHeaders = [];
  for (let index = 0; index + 1 < headers.length; index += 2) {
    const name = headers[index] as string;
    const value = headers[index + 1] as string;
    const lower = name.toLowerCase();
    if (ofWholeOrigin.has(lower)) continue;
    kept.push(name, lower === "location" ? located(value, prefix, host) : value);
  }
  kept.push("Content-Security-Policy", documentPolicy, ...varyByTarget);
  return kept;
}

/** Adds the prefix to a Location on this server, with or without our origin, unless it has the prefix already. */
function located(location: string, prefix: string, host: string): string {
  const [, origin = "", authority] = /^(https?:\/\/([^/?#\\]*))?/i.exec(location) ?? [];
  if (authority !== undefined && authority.toLowerCase() !== host.toLowerCase()) return location;
  const path = location.slice(origin.length);
  const isAbsolute = origin !== "" || (path.startsWith("/") && !path.startsWith("//"));
  const after = path.startsWith(prefix) ? path[prefix.length] : "x";
  if (!isAbsolute || after === undefined || "/?#".includes(after)) return location;
  return `${origin}${prefix}${path.startsWith("/") || path === "" ? "" : "/"}${path}`;
}
