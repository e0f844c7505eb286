/** The report for an owner about connections and names that the egress policy refused. */

/** Denials of a slot since it was made. */
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
