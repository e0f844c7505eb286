/**
 * The form of a JWT that every verifier accepts: three parts of base64url, each in its canonical spelling. A lax
 * decoder accepts several spellings of one signature, and two verifiers could then disagree about a token.
 */

/** Base64url without padding, whose unused bits at the end are zero. */
export function isCanonicalBase64url(text: string): boolean {
  if (!/^[A-Za-z0-9_-]+$/.test(text)) return false;
  switch (text.length % 4) {
    case 0:
      return true;
    case 2:
      return /[AQgw]$/.test(text);
    case 3:
      return /[AEIMQUYcgkosw048]$/.test(text);
    default:
      return false;
  }
}

/** Head, payload and signature. Throws when the text is not such a token. */
export function tokenParts(token: string): [head: string, payload: string, signature: string] {
  const parts = token.split(".");
  const [head, payload, signature] = parts;
  if (parts.length !== 3 || !head || !payload || !signature) throw new Error("a token has three parts");
  if (!parts.every(isCanonicalBase64url)) throw new Error("a token's parts are canonical base64url");
  return [head, payload, signature];
}
