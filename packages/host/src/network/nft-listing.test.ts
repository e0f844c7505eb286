import { expect, it } from "vitest";
import { readDenials, readElements, readRefusals, readResolved } from "./nft-listing.ts";

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
      { set: { name: "opened", elem: [{ concat: ["s5", 77] }] } },
      { set: { name: "connections" } },
    ],
  };
  expect(Object.fromEntries(readElements(json))).toEqual({
    5: {
      hasEgress: true,
      hasResolving: true,
      generation: 77,
      allowed: ["11.2.3.0/24 . tcp . 80-90", "11.0.0.1-11.0.0.9 . udp . 53"],
    },
    6: { hasEgress: true, hasResolving: false, allowed: [], generation: 0 },
    8: { hasEgress: false, hasResolving: false, allowed: [], generation: 0 },
  });
});

it("reads denials, also when there are none", () => {
  const elem = [{ elem: { val: "s5", counter: { packets: 3, bytes: 180 } } }];
  expect(Object.fromEntries(readDenials({ nftables: [{ set: { name: "denied", elem } }] }))).toEqual({
    5: { packets: 3, bytes: 180 },
  });
  expect(readDenials({ nftables: [{ set: { name: "denied" } }] }).size).toBe(0);
});

it("reads what was resolved, and what was refused lately, with their times", () => {
  const resolved = [
    { elem: { val: { concat: ["s5", "11.9.9.9", { range: [1, 65535] }] }, timeout: 60, expires: 20 } },
    { elem: { val: { concat: ["s5", "11.9.9.8", 443] }, timeout: 60, expires: 30 } },
  ];
  const found = readResolved({ nftables: [{ set: { name: "resolved", elem: resolved } }] }, 1_000);
  expect([...(found.get(5) ?? [])]).toEqual([
    ["11.9.9.9", { ports: [[1, 65535]], expiresAtMs: 21_000, names: [] }],
    ["11.9.9.8", { ports: [[443, 443]], expiresAtMs: 31_000, names: [] }],
  ]);
  const val = { concat: ["s6", "11.1.1.1", "tcp", 25] };
  const refusals = [{ elem: { val, expires: 590, counter: { packets: 3, bytes: 180 } } }];
  const json = { nftables: [{ set: { name: "refusals", elem: refusals } }] };
  expect(readRefusals(json, 50_000).get(6)).toEqual([
    { address: "11.1.1.1", protocol: "tcp", port: 25, packets: 3, lastAtMs: 40_000 },
  ]);
});
