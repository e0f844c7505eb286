import { describe, expect, it } from "vitest";
import { matchesDomain, parseAllowedCidr, parseAllowedDomain } from "./egress.ts";

describe("allowed domains", () => {
  it("are names, exact or with a wildcard in front, with or without ports", () => {
    expect(parseAllowedDomain("Example.org.")).toEqual({
      name: "example.org",
      below: false,
      ports: [1, 65_535],
    });
    expect(parseAllowedDomain("*.example.org:443")).toEqual({
      name: "example.org",
      below: true,
      ports: [443, 443],
    });
    expect(parseAllowedDomain("a-b.example.org:8000-8100")?.ports).toEqual([8_000, 8_100]);
  });

  it.each([
    "",
    "*",
    "*.",
    "a.*.org",
    "*example.org",
    "http://example.org",
    "example.org/",
    "-a.org",
    "a..b",
    "a b",
    "203.0.113.7",
    "example.org:0",
    "example.org:65536",
    "example.org:9-8",
    "example.org:",
    `${"a".repeat(64)}.org`,
    `${"abcdefgh.".repeat(32)}org`,
  ])("%j is none", (text) => expect(parseAllowedDomain(text)).toBeUndefined());

  it("match whole labels only", () => {
    const below = { name: "example.org", below: true, ports: [1, 65_535] as const };
    expect(matchesDomain(below, "a.example.org")).toBe(true);
    expect(matchesDomain(below, "a.b.example.org")).toBe(true);
    expect(matchesDomain(below, "example.org")).toBe(false);
    expect(matchesDomain(below, "evilexample.org")).toBe(false);
    expect(matchesDomain(below, "a.example.org.evil.test")).toBe(false);
    expect(matchesDomain({ ...below, below: false }, "example.org")).toBe(true);
    expect(matchesDomain({ ...below, below: false }, "a.example.org")).toBe(false);
  });
});

describe("allowed CIDRs", () => {
  it("are IPv4 ranges or addresses, with or without ports", () => {
    expect(parseAllowedCidr("203.0.113.0/24")).toEqual({ cidr: "203.0.113.0/24", ports: [1, 65_535] });
    expect(parseAllowedCidr("203.0.113.7:80-90")).toEqual({ cidr: "203.0.113.7", ports: [80, 90] });
  });
  it.each(["", "1.2.3", "1.2.3.256", "1.2.3.4/33", "1.2.3.4/", "::1", "2001:db8::/32", "1.2.3.4:99999", "a"])(
    "%j is none",
    (text) => expect(parseAllowedCidr(text)).toBeUndefined(),
  );
});
