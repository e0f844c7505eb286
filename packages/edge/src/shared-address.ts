/**
 * One address for the sandboxes of a service, without a name for each: `/sandboxes/{id}/…`, `/sandboxes/{id}/ports/{port}/…`, or any path
 * with `x-sandbox-id` (and `x-sandbox-port`). The base domain, `localhost` and IP addresses are such hosts. No other name is: a web page
 * could come from one whose owner points it at this machine (DNS rebinding).
 */
import type { IncomingMessage } from "node:http";
import { isIP } from "node:net";
import { ClocheError, isSandboxId } from "@cloche/protocol";
import type { Target } from "./authority.ts";
import type { RawHeaders } from "./headers.ts";

export const sandboxIdHeader = "x-sandbox-id";
export const sandboxPortHeader = "x-sandbox-port";

/** Of every answer there: a browser must not take one sandbox's from its cache for what another is asked by the same URL. */
export const varyByTarget: RawHeaders = ["Vary", `${sandboxIdHeader}, ${sandboxPortHeader}`];

/** Where a sandbox's own paths begin at the shared address. */
export const sandboxPath = (sandboxId: string): string => `/sandboxes/${sandboxId}`;

export interface SharedTarget extends Target {
  /** What precedes the sandbox's own path: `/sandboxes/{id}/ports/{port}`. Empty where headers name the sandbox. */
  prefix: string;
  /** What the sandbox is asked: path and query, as they were sent. */
  url: string;
}

/** The name or address in a Host header if it is one of the shared address, in lower case and without brackets; else undefined. */
export function sharedHostname(host: string, baseDomain: string): string | undefined {
  const match = /^(?:\[([0-9a-f:.]+)\]|([a-z0-9.-]+?)\.?)(?::\d{1,5})?$/i.exec(host);
  if (match?.[1] !== undefined) return isIP(match[1]) === 6 ? match[1].toLowerCase() : undefined;
  const name = match?.[2]?.toLowerCase();
  if (name === undefined) return undefined;
  return name === baseDomain || name === "localhost" || isIP(name) === 4 ? name : undefined;
}

/**
 * The sandbox that a request at the shared address is for; undefined: it names none. Throws `not_found` for a path and `invalid_argument`
 * for a header that cannot be right, and where the two contradict each other.
 */
export function sharedTarget(request: IncomingMessage, hostname: string): SharedTarget | undefined {
  const url = request.url ?? "";
  const byPath = /^\/sandboxes\/([^/?]*)(?:\/ports\/([^/?]*))?(?=[/?]|$)/.exec(url);
  const named = readHeaders(request);
  if (byPath === null) {
    return named.sandboxId === undefined
      ? undefined
      : { sandboxId: named.sandboxId, port: named.port, hostname, prefix: "", url };
  }
  const [prefix, sandboxId = "", portText] = byPath;
  if (!isSandboxId(sandboxId)) throw notFound("sandbox", sandboxId);
  const port = portText === undefined ? undefined : portOf(portText);
  if (portText !== undefined && port === undefined) throw notFound("port", portText);
  if (named.sandboxId !== undefined && named.sandboxId !== sandboxId)
    throw contradiction(sandboxIdHeader, named.sandboxId, sandboxId);
  if (port !== undefined && named.port !== undefined && named.port !== port)
    throw contradiction(sandboxPortHeader, named.port, port);
  const rest = url.slice(prefix.length);
  return {
    sandboxId,
    port: port ?? named.port,
    hostname,
    prefix,
    url: rest.startsWith("/") ? rest : `/${rest}`,
  };
}

/** A preflight carries no headers of its own, so it cannot name a sandbox. One for a port is the port's own server's to answer. */
export function asksForPort(request: IncomingMessage): boolean {
  const wanted = request.headers["access-control-request-headers"] ?? "";
  return wanted.toLowerCase().includes(sandboxPortHeader);
}

function readHeaders(request: IncomingMessage): { sandboxId: string | undefined; port: number | undefined } {
  const sandboxId = textOf(request, sandboxIdHeader);
  if (sandboxId !== undefined && !isSandboxId(sandboxId))
    throw bad(`${sandboxIdHeader} is ${JSON.stringify(sandboxId.slice(0, 64))}; it must be a sandbox's id`);
  const portText = textOf(request, sandboxPortHeader);
  const port = portText === undefined ? undefined : portOf(portText);
  if (portText !== undefined && port === undefined)
    throw bad(
      `${sandboxPortHeader} is ${JSON.stringify(portText.slice(0, 64))}; it must be a port from 1 to 65535`,
    );
  return { sandboxId, port };
}

/** Of a header that was sent twice node joins the values, which then are neither an id nor a port. */
const textOf = (request: IncomingMessage, name: string): string | undefined =>
  request.headers[name] as string | undefined;

function portOf(text: string): number | undefined {
  return /^[1-9]\d{0,4}$/.test(text) && Number(text) <= 65_535 ? Number(text) : undefined;
}

const bad = (message: string): ClocheError => new ClocheError("invalid_argument", message);

const notFound = (what: string, text: string): ClocheError =>
  new ClocheError("not_found", `the path names no ${what}: ${JSON.stringify(text.slice(0, 64))}`);

const contradiction = (header: string, named: string | number, inPath: string | number): ClocheError =>
  bad(`${header} is ${named}, but the path names ${inPath}`);
