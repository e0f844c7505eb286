import { expect, it } from "vitest";
import { parseAddress } from "./host-address.ts";

it("an address is a host and a port", () => {
  expect(parseAddress("gw-1.example:7090")).toEqual({ host: "gw-1.example", port: 7090 });
  expect(parseAddress("[fd00::1]:7090")).toEqual({ host: "fd00::1", port: 7090 });
  for (const none of ["", "gw-1", "gw-1:0", "gw-1:70000", "fd00::1:7090", ":7090"])
    expect(() => parseAddress(none)).toThrow(/no host:port/);
});
