import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { toRange } from "./address.ts";
import {
  checkEgress,
  type EgressRule,
  egressCommands,
  elementsOf,
  noElements,
  openElements,
  policyOf,
  removalCommands,
} from "./egress.ts";

describe("egress policies", () => {
  it("say the same of an open slot to nft and to the kernel", () => {
    const words = openElements(7).map(
      (one) => `${one.set} { ${one.interface}${one.chain === undefined ? "" : ` : goto ${one.chain}`} }`,
    );
    expect(egressCommands(7, { mode: "open" }, noElements)).toEqual(
      words.map((word) => `add element inet cloche ${word}`),
    );
  });

  it("turn into set elements", () => {
    expect(egressCommands(7, { mode: "open" }, noElements)).toEqual([
      "add element inet cloche resolving { s7 }",
      "add element inet cloche egress { s7 : goto open }",
    ]);
    expect(egressCommands(7, { mode: "none" }, elementsOf({ mode: "open" }))).toEqual([
      "delete element inet cloche egress { s7 }",
      "delete element inet cloche resolving { s7 }",
      "add element inet cloche egress { s7 : goto deny }",
    ]);
    const allow: EgressRule[] = [{ cidr: "11.2.3.0/24", protocol: "tcp", ports: [80, 90] }];
    expect(egressCommands(7, { mode: "list", allow, domains: [] }, noElements)).toContain(
      "add element inet cloche allowed { s7 . 11.2.3.0-11.2.3.255 . tcp . 80-90 }",
    );
    expect(removalCommands(7, elementsOf({ mode: "list", allow, domains: [] }))).toContain(
      "delete element inet cloche allowed { s7 . 11.2.3.0-11.2.3.255 . tcp . 80-90 }",
    );
  });

  it("let what allowed names resolve to be opened under a number of its own", () => {
    const policy = policyOf({ mode: "allow", domains: ["example.org:443"], cidrs: ["11.0.0.1:80"] });
    expect(egressCommands(7, policy, noElements, 5)).toEqual([
      "add element inet cloche resolving { s7 }",
      "add element inet cloche allowed { s7 . 11.0.0.1 . tcp . 80 }",
      "add element inet cloche allowed { s7 . 11.0.0.1 . udp . 80 }",
      "add element inet cloche generation { s7 : 5 }",
      "add element inet cloche opened { s7 . 5 }",
      "add element inet cloche egress { s7 : goto listed }",
    ]);
    expect(removalCommands(7, elementsOf(policy, 5))).toContain(
      "delete element inet cloche opened { s7 . 5 }",
    );
    expect(policyOf(undefined)).toEqual({ mode: "open" });
    expect(() => policyOf({ mode: "allow", domains: ["a b"], cidrs: [] })).toThrow("egress.domains[0]");
  });

  it("refuse bad rules by name", () => {
    const policy = (rule: Partial<EgressRule>) => ({
      mode: "list" as const,
      domains: [],
      allow: [{ cidr: "11.0.0.1", protocol: "tcp" as const, ports: [1, 2] as const, ...rule }],
    });
    expect(() => checkEgress(policy({}))).not.toThrow();
    expect(() => checkEgress(policy({ cidr: "example.com" }))).toThrow("egress.allow[0].cidr");
    expect(() => checkEgress(policy({ protocol: "icmp" as "tcp" }))).toThrow("egress.allow[0].protocol");
    expect(() => checkEgress(policy({ ports: [0, 5] }))).toThrow("egress.allow[0].ports");
    expect(() => checkEgress(policy({ ports: [9, 5] }))).toThrow("egress.allow[0].ports");
    expect(() =>
      checkEgress({ mode: "list", allow: Array(257).fill(policy({}).allow[0]), domains: [] }),
    ).toThrow("256");
  });

  it("overlap as they like: the elements are disjoint and allow exactly what the rules allow", () => {
    const rule = fc.record({
      cidr: fc
        .tuple(fc.integer({ min: 0, max: 15 }), fc.integer({ min: 28, max: 32 }))
        .map(([last, bits]) => `11.0.0.${last}/${bits}`),
      protocol: fc.constantFrom("tcp" as const, "udp" as const),
      ports: fc
        .tuple(fc.integer({ min: 1, max: 9 }), fc.integer({ min: 0, max: 4 }))
        .map(([a, n]): [number, number] => [a, a + n]),
    });
    fc.assert(
      fc.property(fc.array(rule, { maxLength: 6 }), (allow) => {
        const elements = elementsOf({ mode: "list", allow, domains: [] }).allowed.map((text) => {
          const [addresses = "", protocol, ports = ""] = text.split(" . ");
          const [from = "", to = from] = addresses.split("-");
          const [first = "", last = first] = ports.split("-");
          return {
            first: toRange(from).first,
            last: toRange(to).first,
            protocol,
            ports: [Number(first), Number(last)] as const,
          };
        });
        for (let host = 0; host < 18; host++)
          for (const protocol of ["tcp", "udp"])
            for (let port = 1; port < 15; port++) {
              const address = toRange(`11.0.0.${host}`).first;
              const allowed = allow.some((one) => {
                const range = toRange(one.cidr);
                const inside = range.first <= address && address <= range.last;
                return inside && one.protocol === protocol && one.ports[0] <= port && port <= one.ports[1];
              });
              const matching = elements.filter(
                (one) =>
                  one.protocol === protocol &&
                  one.first <= address &&
                  address <= one.last &&
                  one.ports[0] <= port &&
                  port <= one.ports[1],
              );
              expect(matching.length).toBe(allowed ? 1 : 0);
            }
      }),
      { numRuns: 60 },
    );
  });
});
