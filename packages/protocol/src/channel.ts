import type { TokenClaims } from "./tokens.ts";

/**
 * The channel from edge and host to an agent (ARCHITECTURE.md, The channel): TLS 1.3 with a key that only they and the agent of
 * that machine have, and on it, in place of the owner's token, a credential that nobody but that agent takes.
 *
 *   control secret (host, and its SHA-256 in the agent)
 *     └─HKDF─▶ channel key (host, edges, agent) ─HKDF─┬─▶ pre-shared key of TLS
 *                                                     └─▶ key of inner tokens (HS256)
 *
 * So an edge, which has the channel key, still cannot call GuestService.
 */
export const channel = {
  /** The pre-shared key's name in the handshake. */
  identity: "cloche-channel-1",
  version: "TLSv1.3",
  cipher: "TLS_AES_128_GCM_SHA256",
  group: "X25519",
  keyBytes: 32,
  /** HKDF-SHA256 without salt, by these words. */
  words: {
    key: "cloche channel 1",
    preSharedKey: "cloche channel 1 tls",
    tokenKey: "cloche channel 1 token",
  },
} as const;

/** Header of an inner token. RS256, which is all that edge and host take, is another algorithm by another key. */
export const innerTokenHeader = { alg: "HS256", typ: "cloche-inner" } as const;

/** Claims of an inner token: the owner's own, verified; of a tunnel to a port, that port. */
export interface InnerTokenClaims extends TokenClaims {
  /** Opens the tunnel to this port, and nothing else. */
  port?: number;
}
