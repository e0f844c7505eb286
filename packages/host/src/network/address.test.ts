import { describe, expect, it } from "vitest";
import {
  overlaps,
  parseSubnet,
  slotsMax,
  slotAddresses,
  slotOfAddress,
  toRange,
  uplinkAddresses,
} from "./address.ts";

describe("addresses of an instance", () => {
  const subnet = parseSubnet("10.231.0.0/16");

  it("gives the uplink and every slot a /30 of its own", () => {
    expect(uplinkAddresses(subnet)).toEqual({ gateway: "10.231.0.1", address: "10.231.0.2" });
    expect(slotAddresses(subnet, 1)).toEqual({ gateway: "10.231.0.5", address: "10.231.0.6" });
    expect(slotAddresses(subnet, 64)).toEqual({ gateway: "10.231.1.1", address: "10.231.1.2" });
    expect(slotAddresses(subnet, slotsMax)).toEqual({
      gateway: "10.231.255.253",
      address: "10.231.255.254",
    });
    for (const slot of [0, slotsMax + 1, 1.5]) expect(() => slotAddresses(subnet, slot)).toThrow("no slot");
  });

  it("finds the slot of a sandbox's address, and of no other address", () => {
    for (const slot of [1, 2, 63, 64, 1_000, slotsMax])
      expect(slotOfAddress(subnet, slotAddresses(subnet, slot).address)).toBe(slot);
    for (const address of ["10.231.0.1", "10.231.0.2", "10.231.0.5", "10.230.0.6", "11.231.0.6", "x", "::1"])
      expect(slotOfAddress(subnet, address)).toBeUndefined();
  });

  it("refuses what is no /16", () => {
    for (const text of [
      "10.231.0.0/24",
      "10.231.1.0/16",
      "300.1.0.0/16",
      "0.0.0.0/16",
      "127.0.0.0/16",
      "224.1.0.0/16",
      "",
    ])
      expect(() => parseSubnet(text)).toThrow("CLOCHE_SUBNET");
  });

  it("knows ranges", () => {
    expect(toRange("192.0.2.77/24")).toEqual({ first: 0xc0000200, last: 0xc00002ff });
    expect(toRange("0.0.0.0/0")).toEqual({ first: 0, last: 0xffffffff });
    for (const text of ["1.2.3", "1.2.3.4/33", "1.2.3.256", "a.b.c.d", "1.2.3.4/", "::/0"])
      expect(() => toRange(text)).toThrow(RangeError);
    expect(overlaps("10.0.0.0/8", "10.231.4.4")).toBe(true);
    expect(overlaps("10.230.0.0/16", "10.231.0.0/16")).toBe(false);
  });
});
