/** The boundary to Connect: turns our errors into Connect's, and Connect's messages into ours. */
import { ClocheError } from "@cloche/protocol";
import { connectCodes } from "@cloche/protocol/connect-codes";
import { ConnectError } from "@connectrpc/connect";

/**
 * The error as Connect sends it: HTTP status, code and message by Connect's own mapping (spec/contract.md, Both
 * surfaces).
 */
export function connectErrorFrom(error: ClocheError): ConnectError {
  const headers: Record<string, string> = {};
  if (error.code === "unauthenticated") headers["www-authenticate"] = "Bearer";
  if (error.retryAfterSeconds !== undefined) headers["retry-after"] = String(error.retryAfterSeconds);
  return new ConnectError(error.message, connectCodes[error.code], headers, undefined, error.cause);
}

/** Runs a method of a service without interceptors: turns all that `body` throws into Connect's errors. */
export async function answering<T>(body: () => Promise<T>): Promise<T> {
  try {
    return await body();
  } catch (error) {
    throw connectErrorFrom(ClocheError.from(error));
  }
}

/**
 * Connect's message names the full path of a field that it cannot read. Ours begins with the field as the caller wrote
 * it: `cpus: expected number (float64), got "many"`.
 */
export function plainMessage(message: string): string {
  const field = /^cannot decode field [\w.]+\.(\w+) from JSON: ([^]*)$/.exec(message);
  if (field !== null) return `${field[1]}: ${field[2]}`;
  const body = /^cannot decode (?:message )?[\w.]+ from JSON: ([^]*)$/.exec(message);
  if (body !== null) return `request body must be a JSON object; got ${body[1]}`;
  const unpacked = /larger than configured readMaxBytes (\d+)/.exec(message);
  if (unpacked !== null) return `request body unpacks to more than ${unpacked[1]} bytes`;
  return message;
}
