import type { TokenClaims } from "./tokens.ts";

/**
 * The channel from edge and host to an agent (docs/internals/channel.md): TLS 1.3 with a key that only they and the
 * agent of that machine have. On the channel, an inner token that only that agent accepts replaces the owner's token.
 *
 *   control secret (host, and its SHA-256 in the agent)
 *     └─HKDF─▶ channel key (host, edges, agent) ─HKDF─┬─▶ pre-shared key of TLS
 *                                                     └─▶ key of inner tokens (HS256)
 *
 * So an edge, which has only the channel key, cannot call GuestService.
 */
export const channel = {
  /** Name of the pre-shared key in the handshake. */
  identity: "cloche-channel-1",
  version: "TLSv1.3",
  cipher: "TLS_AES_128_GCM_SHA256",
  group: "X25519",
  keyBytes: 32,
  /** Info texts of HKDF-SHA256, without salt. */
  labels: {
    key: "cloche channel 1",
    preSharedKey: "cloche channel 1 tls",
    tokenKey: "cloche channel 1 token",
  },
} as const;

/** Header of an inner token. Edge and host refuse it: they accept only RS256, which uses another key. */
export const innerTokenHeader = { alg: "HS256", typ: "cloche-inner" } as const;

/** Claims of an inner token: those of the verified owner's token, or for a tunnel, its port. */
export interface InnerTokenClaims extends TokenClaims {
  /** The token only opens the tunnel to this port. */
  port?: number;
}
