import { BlockList } from "node:net";
import { describe, expect, it } from "vitest";
import { parseSubnet } from "./address.ts";
import { hostRules, routerRules, specialRanges } from "./rules.ts";

const rules = { subnet: parseSubnet("10.231.0.0/16"), dnsPort: 5353, tableSize: 262_144 };

/** tests/host/network.test.ts tests the rules with packets. Here only the properties that a restart needs. */
describe("router rules", () => {
  it("replace rules and keep sets", () => {
    const lines = routerRules(rules).split("\n");
    expect(
      lines.filter((line) => /^(delete|destroy)|flush (table|map|set inet cloche (?!special))/.test(line)),
    ).toEqual([]);
    const chains = lines.flatMap((line) => /^add chain inet cloche (\w+)/.exec(line)?.[1] ?? []);
    for (const chain of chains) expect(lines).toContain(`flush chain inet cloche ${chain}`);
  });

  it("drop what no rule accepts", () => {
    expect(routerRules(rules)).toMatch(/add chain inet cloche forward \{ .*policy drop; \}/);
    expect(routerRules(rules)).toMatch(/add chain inet cloche input \{ .*policy drop; \}/);
  });

  it("bound a sandbox, its team and all of them by the size of the host's table", () => {
    const bounds = (tableSize: number): number[] =>
      [...routerRules({ ...rules, tableSize }).matchAll(/ct count over (\d+)/g)].map(([, most]) =>
        Number(most),
      );
    const parts = 64;
    expect(bounds(262_144)).toEqual([1_200, 49_152 / parts, 196_608 / parts]);
    expect(bounds(65_536)).toEqual([1_200, 12_288 / parts, 49_152 / parts]);
  });

  it.each([
    ["AWS, Google, Azure, Oracle and others", "169.254.169.254"],
    ["the tasks of Amazon ECS", "169.254.170.2"],
    ["Azure's platform", "168.63.129.16"],
    ["Alibaba", "100.100.100.200"],
    ["Oracle's classic cloud", "192.0.0.192"],
  ])("close the metadata service of %s (%s)", (_whose, address) => {
    const closed = new BlockList();
    for (const range of specialRanges) {
      const [start = "", bits] = range.split("/");
      closed.addSubnet(start, Number(bits));
    }
    expect(closed.check(address)).toBe(true);
    expect(closed.check("168.63.129.17")).toBe(false);
  });

  it("close IPv6, with the metadata service at fd00:ec2::254", () => {
    expect(routerRules(rules)).toContain('spoof iifname "s*" meta nfproto != ipv4 goto forged');
  });

  it("count the instance's own subnet among the closed ranges, wherever it lies", () => {
    const elsewhere = { ...rules, subnet: parseSubnet("100.5.0.0/16") };
    for (const text of [routerRules(elsewhere), hostRules("abc123", elsewhere)])
      expect(text).toMatch(/add element .* special \{ .*100\.5\.0\.0\/16 \}/);
  });
});
