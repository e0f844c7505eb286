import { expect, it } from "vitest";
import { readDenials, readElements } from "./sets.ts";

it("reads back what nft holds of each slot", () => {
  const json = {
    nftables: [
      { metainfo: {} },
      { table: { name: "cloche" } },
      {
        map: {
          name: "egress",
          elem: [
            ["s5", { goto: { target: "listed" } }],
            ["s6", { goto: { target: "open" } }],
          ],
        },
      },
      { set: { name: "resolving", elem: ["s5"] } },
      { set: { name: "sources", elem: [{ concat: ["s8", "10.231.0.34"] }] } },
      {
        set: {
          name: "allowed",
          elem: [
            { concat: ["s5", { prefix: { addr: "11.2.3.0", len: 24 } }, "tcp", { range: [80, 90] }] },
            { concat: ["s5", { range: ["11.0.0.1", "11.0.0.9"] }, "udp", 53] },
          ],
        },
      },
      { set: { name: "connections" } },
    ],
  };
  expect(Object.fromEntries(readElements(json))).toEqual({
    5: {
      hasEgress: true,
      hasResolving: true,
      allowed: ["11.2.3.0/24 . tcp . 80-90", "11.0.0.1-11.0.0.9 . udp . 53"],
    },
    6: { hasEgress: true, hasResolving: false, allowed: [] },
    8: { hasEgress: false, hasResolving: false, allowed: [] },
  });
});

it("reads denials, also when there are none", () => {
  const elem = [{ elem: { val: "s5", counter: { packets: 3, bytes: 180 } } }];
  expect(Object.fromEntries(readDenials({ nftables: [{ set: { name: "denied", elem } }] }))).toEqual({
    5: { packets: 3, bytes: 180 },
  });
  expect(readDenials({ nftables: [{ set: { name: "denied" } }] }).size).toBe(0);
});
