/** All bytes over a machine's link since it was made, with data plane calls, in the machine's direction. */
export interface LinkTraffic {
  readonly receivedBytes: number;
  readonly sentBytes: number;
}

interface LinkStatistics {
  ifname: string;
  stats64?: { rx: { bytes: number }; tx: { bytes: number } };
}

/** By slot, from `ip -s -j link` in the router, whose end of a link receives the bytes that the machine sends. */
export function trafficOfSlots(json: string): Map<number, LinkTraffic> {
  const traffic = new Map<number, LinkTraffic>();
  for (const { ifname, stats64 } of JSON.parse(json) as LinkStatistics[]) {
    const slot = /^s(\d+)$/.exec(ifname)?.[1];
    if (slot === undefined || stats64 === undefined) continue;
    traffic.set(Number(slot), { receivedBytes: stats64.tx.bytes, sentBytes: stats64.rx.bytes });
  }
  return traffic;
}
