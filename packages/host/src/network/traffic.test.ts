import { expect, it } from "vitest";
import { trafficOfSlots } from "./traffic.ts";

it("reads each slot's link from the machine's side, and no other link", () => {
  const stats64 = { rx: { bytes: 10, packets: 1 }, tx: { bytes: 2_000_000_000_000, packets: 2 } };
  const links = [
    { ifname: "lo", stats64 },
    { ifname: "uplink", stats64 },
    { ifname: "s7", stats64 },
    { ifname: "s12", stats64: { rx: { bytes: 0 }, tx: { bytes: 3 } } },
    { ifname: "s9" },
  ];
  expect([...trafficOfSlots(JSON.stringify(links))]).toEqual([
    [7, { receivedBytes: 2_000_000_000_000, sentBytes: 10 }],
    [12, { receivedBytes: 3, sentBytes: 0 }],
  ]);
});
