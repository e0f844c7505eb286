import { createHash, timingSafeEqual } from "node:crypto";
import { E2bError } from "../e2b-error.ts";
import type { Sandboxes } from "./sandboxes.ts";
import type { Signer } from "../signers.ts";

/** A longer text would be hashed for each signer. */
const isSeconds = (text: string): boolean => /^\d{1,15}$/.test(text);

/**
 * Checks `signature=v1_…`: the SHA-256 of `path:operation:user:token[:expiration]`, with the sandbox's token. At the one address of all
 * sandboxes the URL names no sandbox; it is then the sandbox whose token fits.
 */
export async function readSignature(
  sandboxes: Sandboxes,
  query: URLSearchParams,
  operation: "read" | "write",
  sandboxId: string | undefined,
): Promise<Signer> {
  const signature = query.get("signature");
  if (signature === null)
    throw new E2bError("unauthenticated", "missing signature query parameter or X-Access-Token");
  const expiration = query.get("signature_expiration");
  if (expiration !== null && !(isSeconds(expiration) && Number(expiration) > Date.now() / 1_000))
    throw new E2bError("unauthenticated", "signature is already expired");
  const shown = Buffer.from(signature);
  // Hashed once and not for each signer: a path may have as many bytes as a request's head.
  const before = createHash("sha256").update(
    `${query.get("path") ?? ""}:${operation}:${query.get("username") ?? ""}:`,
  );
  const after = expiration === null ? "" : `:${expiration}`;
  for (const signer of await sandboxes.signers(sandboxId)) {
    const digest = before.copy().update(`${signer.token}${after}`).digest("base64").replace(/=+$/, "");
    const wanted = Buffer.from(`v1_${digest}`);
    if (wanted.length === shown.length && timingSafeEqual(wanted, shown)) return signer;
  }
  throw new E2bError("unauthenticated", "invalid signature");
}
