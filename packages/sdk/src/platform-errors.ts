import type { ClocheConnectionError } from "./errors.ts";

type Kind = ClocheConnectionError["code"];

/** Errors of the platforms, by code or words, with the remedy. Node, Bun and Deno use different words. */
const remedies: [pattern: RegExp, kind: Kind, remedy: () => string][] = [
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

/** The kind of an error of the platform, by its code and words, and what to do. */
export function remedyOf(message: string): [Kind, remedy: string] {
  const [, kind, remedy] = remedies.find(([pattern]) => pattern.test(message)) ?? [];
  return kind === undefined || remedy === undefined
    ? ["unreachable", "check that the service runs (`npm start`) and that CLOCHE_URL is where it is"]
    : [kind, remedy()];
}
