// One step of a case as the request to send: captured values filled in, the body made, the path built. Pure.
import type { Step, Surface } from "./case-file.ts";

export type Captured = Record<string, unknown>;

export const publicService = "cloche.public.v1.SandboxService";

const gatewayStatuses: Record<string, number> = {
  canceled: 499,
  invalid_argument: 400,
  deadline_exceeded: 504,
  not_found: 404,
  already_exists: 409,
  permission_denied: 403,
  resource_exhausted: 429,
  failed_precondition: 400,
  aborted: 409,
  unimplemented: 501,
  internal: 500,
  unavailable: 503,
  unauthenticated: 401,
};
const dataPlaneStatuses: Record<string, number> = {
  ...gatewayStatuses,
  deadline_exceeded: 408,
  failed_precondition: 409,
};

/** The status that a surface gives an error code (spec/contract.md, Both surfaces; Connect's own mapping on the gateway). */
export function statusOf(surface: Surface, code: string): number {
  const status = (surface === "gateway" ? gatewayStatuses : dataPlaneStatuses)[code];
  if (status === undefined) throw new Error(`${code} is no error code`);
  return status;
}

/** Fills `${name}` in every string of a value; a string that is only `${name}` becomes what was captured, type and all. */
export function fill<T>(value: T, captured: Captured): T {
  if (typeof value === "string") return fillText(value, captured) as T;
  if (Array.isArray(value)) return value.map((one: unknown) => fill(one, captured)) as T;
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(
    Object.entries(value).map(([key, one]) => [fillText(key, captured), fill(one as unknown, captured)]),
  ) as T;
}

function fillText(text: string, captured: Captured): unknown {
  const whole = /^\$\{(\w+)\}$/.exec(text);
  if (whole) return lookUp(whole[1] ?? "", captured);
  return text.replaceAll(/\$\{(\w+)\}/g, (_, name: string) => String(lookUp(name, captured)));
}

function lookUp(name: string, captured: Captured): unknown {
  if (!(name in captured)) throw new Error(`\${${name}} was not captured before`);
  return captured[name];
}

export function bodyOf(step: Step): Buffer | undefined {
  if (step.json !== undefined) return Buffer.from(JSON.stringify(step.json));
  if (step.text !== undefined) return Buffer.from(step.text);
  if (step.base64 !== undefined) return Buffer.from(step.base64, "base64");
  if (step.bytes === undefined) return undefined;
  const { fill: piece, count, prefix = "", suffix = "" } = step.bytes;
  const body = Buffer.from(prefix + piece.repeat(Math.ceil(count / piece.length)).slice(0, count) + suffix);
  return body;
}

/** Method and path of a step. On the gateway `call` is the method's name, on the data plane `METHOD /path`. */
export function requestLine(step: Step, surface: Surface): { method: string; path: string } {
  const query = Object.entries(step.query ?? {})
    .map(([key, value]) => `${encodeURIComponent(key)}=${encodeURIComponent(String(value))}`)
    .join("&");
  const withQuery = (path: string): string => (query === "" ? path : `${path}?${query}`);
  if (surface === "dataplane") {
    const space = step.call.indexOf(" ");
    return { method: step.call.slice(0, space), path: withQuery(step.call.slice(space + 1)) };
  }
  return { method: step.method ?? "POST", path: withQuery(step.path ?? `/${publicService}/${step.call}`) };
}
