import { describe, expect, it } from "vitest";
import { parseSubnet } from "./address.ts";
import { hostRules, routerRules } from "./rules.ts";

const rules = { subnet: parseSubnet("10.231.0.0/16"), dnsPort: 5353 };

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

  it("count the instance's own subnet among the closed ranges, wherever it lies", () => {
    const elsewhere = { ...rules, subnet: parseSubnet("100.5.0.0/16") };
    for (const text of [routerRules(elsewhere), hostRules("abc123", elsewhere)])
      expect(text).toMatch(/add element .* special \{ .*100\.5\.0\.0\/16 \}/);
  });
});
