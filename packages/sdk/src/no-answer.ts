import { ClocheConnectionError } from "./errors.ts";

type Kind = ClocheConnectionError["code"];

/** Errors of the platforms, by code or words, with the remedy. Node, Bun and Deno use different words. */
const remedies: [said: RegExp, kind: Kind, remedy: () => string][] = [
  [
    /HAS_EXPIRED|NOT_YET_VALID|certificate has expired|not valid yet|NotValidYet/i,
    "untrusted",
    () =>
      `set this machine's clock if it is wrong (it says ${new Date().toISOString()}), else renew the certificate`,
  ],
  [
    /ALTNAME|NotValidForName/,
    "untrusted",
    () => "the certificate is of another name: check CLOCHE_URL and CLOCHE_BASE_DOMAIN",
  ],
  [
    /SELF_SIGNED|UNABLE_TO_|CERT_UNTRUSTED|UnknownIssuer|self.signed/i,
    "untrusted",
    () => "set CLOCHE_CA_CERT to the service's CA file (`cloche status` on its machine names it)",
  ],
  [
    /EPROTO|SSL_|WRONG_VERSION|InvalidContentType/,
    "unreachable",
    () => "if it speaks plain HTTP, its address begins with http://",
  ],
  [
    /ECONNRESET|EPIPE|hang up|other side closed|connection (was )?closed/i,
    "connection_lost",
    () => "what was asked may have happened",
  ],
];

/** The error of a request to `host` (with port) that failed without an answer. */
export function noAnswer(cause: unknown, host: string): ClocheConnectionError {
  const inner = innermost(cause);
  const { code, message } =
    inner instanceof Error ? (inner as Error & { code?: unknown }) : { message: String(inner) };
  const [, kind, remedy] = remedies.find(([said]) => said.test(`${String(code)} ${message}`)) ?? [
    undefined,
    "unreachable" as const,
    () => "check that the service runs (`npm start`) and that CLOCHE_URL is where it is",
  ];
  return new ClocheConnectionError(`no answer from ${host}: ${message || String(code)}; ${remedy()}`, {
    cause,
    code: kind,
  });
}

/** The innermost cause: fetch says only "fetch failed". */
function innermost(error: unknown): unknown {
  let inner = error;
  while (inner instanceof Error && inner.cause instanceof Error) inner = inner.cause;
  return inner instanceof AggregateError && inner.errors[0] instanceof Error ? inner.errors[0] : inner;
}
