/** Bytes over a machine's link since the link was made, as the machine sees them: data plane calls, and all else. */
export interface LinkTraffic {
  readonly receivedBytes: number;
  readonly sentBytes: number;
}

interface LinkStatistics {
  ifname: string;
  stats64?: { rx: { bytes: number }; tx: { bytes: number } };
}

/** By slot, of what `ip -s -j link` says in the router: its ends, where what a machine sends is received. */
export function trafficOfSlots(json: string): Map<number, LinkTraffic> {
  const traffic = new Map<number, LinkTraffic>();
  for (const { ifname, stats64 } of JSON.parse(json) as LinkStatistics[]) {
    const slot = /^s(\d+)$/.exec(ifname)?.[1];
    if (slot === undefined || stats64 === undefined) continue;
    traffic.set(Number(slot), { receivedBytes: stats64.tx.bytes, sentBytes: stats64.rx.bytes });
  }
  return traffic;
}
