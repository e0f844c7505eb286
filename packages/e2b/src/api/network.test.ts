import { expect, test } from "vitest";
import { egressOf, isPublicTraffic } from "./network.ts";

const all = "0.0.0.0/0";

test.each([
  [{}, undefined, { mode: "open" }],
  [{ allowOut: ["1.1.1.1"] }, undefined, { mode: "open" }],
  [{}, false, { mode: "none" }],
  [{ denyOut: [all] }, undefined, { mode: "none" }],
  [
    { denyOut: [all], allowOut: ["1.1.1.1", "8.8.0.0/16", "*.example.org"] },
    true,
    { mode: "allow", cidrs: ["1.1.1.1", "8.8.0.0/16"], domains: ["*.example.org"] },
  ],
  [
    { denyOut: [all, "8.8.8.8"], allowOut: ["8.8.8.8"] },
    undefined,
    { mode: "allow", cidrs: ["8.8.8.8"], domains: [] },
  ],
])("%j with internet %s is %j", (network, internet, egress) => {
  expect(egressOf(network, internet)).toEqual(egress);
});

test.each([
  [{ denyOut: ["8.8.8.8"] }, "does not offer network.denyOut of single addresses"],
  [{ rules: { "example.org": [{}] } }, "does not offer network.rules"],
  [{ egressProxy: { address: "p:1" } }, "does not offer network.egressProxy"],
  [{ allowOut: "1.1.1.1" }, "network.allowOut is"],
])("%j is refused with words", (network, words) => {
  expect(() => egressOf(network as never, undefined)).toThrow(words);
});

test("ports are everybody's unless told otherwise", () => {
  expect([isPublicTraffic({}), isPublicTraffic({ allowPublicTraffic: false })]).toEqual([true, false]);
  expect(() => isPublicTraffic({ allowPublicTraffic: "no" })).toThrow("must be true or false");
});
