import type { IncomingMessage } from "node:http";
import type { Gateway } from "@cloche/sdk";
import { badField } from "../e2b-error.ts";
import type { Fields } from "../http.ts";
import type { Sandboxes } from "../envd/sandboxes.ts";

/** One authorised call of E2B's API. */
export interface ApiCall {
  sandboxes: Sandboxes;
  gateway: Gateway;
  apiKey: string;
  /** Values of the path's placeholders, decoded. */
  params: Record<string, string>;
  query: URLSearchParams;
  body: Fields;
  request: IncomingMessage;
}

export interface ApiAnswer {
  status: number;
  body?: unknown;
  headers?: Record<string, string>;
}

export type ApiHandler = (call: ApiCall) => Promise<ApiAnswer>;

export const ok = (body: unknown, headers: Record<string, string> = {}): ApiAnswer => ({
  status: 200,
  body,
  headers,
});
export const created = (body: unknown): ApiAnswer => ({ status: 201, body });
export const empty: ApiAnswer = { status: 204 };

/** Undefined if the field is absent or null. */
export function wholeNumber(
  fields: Fields | URLSearchParams,
  name: string,
  { min = 0, max }: { min?: number; max: number },
): number | undefined {
  const value = fields instanceof URLSearchParams ? (fields.get(name) ?? undefined) : fields[name];
  if (value === undefined || value === null) return undefined;
  const number = typeof value === "string" && /^\d+$/.test(value) ? Number(value) : value;
  if (typeof number !== "number" || !Number.isInteger(number) || number < min || number > max)
    throw badField(name, value, `a whole number from ${min} to ${max}`);
  return number;
}

export function textField(fields: Fields, name: string): string | undefined {
  const value = fields[name];
  if (value === undefined || value === null) return undefined;
  if (typeof value !== "string") throw badField(name, value, "a string");
  return value;
}

export function flag(fields: Fields, name: string): boolean | undefined {
  const value = fields[name];
  if (value === undefined || value === null) return undefined;
  if (typeof value !== "boolean") throw badField(name, value, "true or false");
  return value;
}

/** A JSON object of strings; undefined if it is absent or null. */
export function texts(fields: Fields, name: string): Record<string, string> | undefined {
  const value = fields[name];
  if (value === undefined || value === null) return undefined;
  const isObject = typeof value === "object" && !Array.isArray(value);
  if (!isObject || Object.values(value).some((one) => typeof one !== "string"))
    throw badField(name, value, "an object of strings");
  return value as Record<string, string>;
}
