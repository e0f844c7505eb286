// What an owner is told of connections and names that the egress policy refused.

/** What a slot was denied since it was made. */
export interface EgressReport {
  readonly deniedPackets: number;
  readonly deniedNames: number;
  /** Latest first. */
  readonly recent: readonly EgressDenial[];
}
export interface EgressDenial {
  readonly destination: string;
  readonly protocol: string;
  readonly port: number;
  readonly count: number;
  readonly lastAtMs: number;
}
