/**
 * A port's answer at the shared address, where all sandboxes are one origin to a browser. No page of one may reach another's or leave
 * anything behind for it: its document is sandboxed (an origin of its own, no storage), and headers that would speak for the whole origin
 * are dropped. Links of the server inside that begin with / are led back to where it is reached.
 */
import type { RawHeaders } from "./headers.ts";
import { varyByTarget } from "./shared-address.ts";

/** Without allow-same-origin. */
const documentPolicy = "sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts";

/** They hold for all paths of an origin. A browser that is asked for a password sends it to whoever asks under that name there. */
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

/** `prefix`: of the port's paths. `host`: the request's Host header. */
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

/** A place on the server inside, with or without our own origin before it; one that has the prefix already is left alone. */
function located(location: string, prefix: string, host: string): string {
  const [, origin = "", authority] = /^(https?:\/\/([^/?#\\]*))?/i.exec(location) ?? [];
  if (authority !== undefined && authority.toLowerCase() !== host.toLowerCase()) return location;
  const path = location.slice(origin.length);
  const isAbsolute = origin !== "" || (path.startsWith("/") && !path.startsWith("//"));
  const after = path.startsWith(prefix) ? path[prefix.length] : "x";
  if (!isAbsolute || after === undefined || "/?#".includes(after)) return location;
  return `${origin}${prefix}${path.startsWith("/") || path === "" ? "" : "/"}${path}`;
}
