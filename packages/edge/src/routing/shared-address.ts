/**
 * The shared address of all sandboxes of a service, without a name for each: `/sandboxes/{id}/…`,
 * `/sandboxes/{id}/ports/{port}/…`, or any path with `x-sandbox-id` (and `x-sandbox-port`). Its hosts are the base
 * domain, `localhost` and IP addresses. Other names are refused, because a web page's owner could point its name at
 * this machine (DNS rebinding).
 */
import type { IncomingMessage } from "node:http";
import { isIP } from "node:net";
import { ClocheError, isSandboxId } from "@cloche/protocol";
import type { Target } from "./authority.ts";
import type { RawHeaders } from "../exchange/headers.ts";

export const sandboxIdHeader = "x-sandbox-id";
export const sandboxPortHeader = "x-sandbox-port";

/** Added to every answer there, so that a browser's cache keeps answers of different sandboxes apart. */
export const varyByTarget: RawHeaders = ["Vary", `${sandboxIdHeader}, ${sandboxPortHeader}`];

/** Where a sandbox's own paths begin at the shared address. */
export const sandboxPath = (sandboxId: string): string => `/sandboxes/${sandboxId}`;

export interface SharedTarget extends Target {
  /** The part before the sandbox's own path: `/sandboxes/{id}/ports/{port}`. Empty when headers name the sandbox. */
  prefix: string;
  /** Path and query for the sandbox, as they were sent. */
  url: string;
}

/** The name or IP address of a Host header, in lower case and without brackets; undefined: not the shared address. */
export function sharedHostname(host: string, baseDomain: string): string | undefined {
  const match = /^(?:\[([0-9a-f:.]+)\]|([a-z0-9.-]+?)\.?)(?::\d{1,5})?$/i.exec(host);
  if (match?.[1] !== undefined) return isIP(match[1]) === 6 ? match[1].toLowerCase() : undefined;
  const name = match?.[2]?.toLowerCase();
  if (name === undefined) return undefined;
  return name === baseDomain || name === "localhost" || isIP(name) === 4 ? name : undefined;
}

/**
 * The sandbox that a request at the shared address is for; undefined: it names none. Throws `not_found` for a wrong
 * path, and `invalid_argument` for a wrong header and when path and header differ.
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

/** Whether a preflight without a sandbox in its path is for a port, whose own server would have to answer it. */
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

/** Node joins the values of a repeated header; the result is neither an id nor a port, and is refused. */
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
