/** Values of sandbox fields that gateway, SDK and CLI share (docs/gateway.md). */

/** All values of OnTimeout. */
export const onTimeouts = ["delete", "suspend"] as const;
/** What happens to a sandbox once its `timeout_seconds` are over. */
export type OnTimeout = (typeof onTimeouts)[number];

/** All values of OnHostLoss. */
export const onHostLosses = ["error", "restart_from_checkpoint"] as const;
/** What happens to a sandbox that runs when its host is lost. */
export type OnHostLoss = (typeof onHostLosses)[number];

/** In `public_ports`, alone: every port but the agent's. */
export const allPorts = "*";
/** Ports that need no token. */
export type PublicPorts = (number | typeof allPorts)[];
