import { expect, it } from "vitest";
import { parseResolvers } from "./resolvers.ts";

it("reads the name servers, at most three, the loopback when there are none", () => {
  const text =
    "# nameserver 1.1.1.1\nsearch lan\nnameserver 192.0.2.1\n nameserver fe80::1%eth0\nnameserver 192.0.2.2\nnameserver 192.0.2.3\n";
  expect(parseResolvers(text)).toEqual(["192.0.2.1", "fe80::1%eth0", "192.0.2.2"]);
  expect(parseResolvers("")).toEqual(["127.0.0.1"]);
});
