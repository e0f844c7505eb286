import { describe, expect, it } from "vitest";
import { chooseSubnet, type SubnetQuestion } from "./choose-subnet.ts";

const choose = (question: Partial<SubnetQuestion>): string =>
  chooseSubnet({ asked: "", present: undefined, remembered: undefined, taken: [], ...question });
const taken = (...ranges: string[]) => ranges.map((range) => ({ range, where: "on eth7" }));

describe("the subnet of an instance", () => {
  it.each<[string, Partial<SubnetQuestion>, string]>([
    ["the first, where nobody has it", {}, "10.231.0.0/16"],
    [
      "the next that is free",
      { taken: taken("10.231.0.0/16", "10.232.7.1", "10.233.0.0/30") },
      "10.234.0.0/16",
    ],
    ["one below them, where a larger range is in use", { taken: taken("10.224.0.0/11") }, "10.200.0.0/16"],
    ["the one it had", { remembered: "10.240.0.0/16" }, "10.240.0.0/16"],
    [
      "another, where somebody has taken that",
      { remembered: "10.240.0.0/16", taken: taken("10.240.0.0/16") },
      "10.231.0.0/16",
    ],
    [
      "that of its own router, whatever else is said",
      { present: "10.250.0.0/16", remembered: "10.240.0.0/16", taken: taken("10.250.0.0/24") },
      "10.250.0.0/16",
    ],
    [
      "the one that was set",
      { asked: "172.20.0.0/16", remembered: "10.240.0.0/16", present: "10.240.0.0/16" },
      "172.20.0.0/16",
    ],
    [
      "the one that was set and is its own",
      { asked: "10.231.0.0/16", present: "10.231.0.0/16", taken: taken("10.0.0.0/8") },
      "10.231.0.0/16",
    ],
  ])("is %s", (_what, question, subnet) => expect(choose(question)).toBe(subnet));

  it("is refused where it was set and is in use, saying whose it is", () => {
    expect(() =>
      choose({ asked: "10.231.0.0/16", remembered: "10.240.0.0/16", taken: taken("10.231.4.0/24") }),
    ).toThrow(
      /CLOCHE_SUBNET: 10.231.0.0\/16 is in use on this machine \(10.231.4.0\/24 on eth7\); set another/,
    );
    expect(() => choose({ taken: taken("10.0.0.0/8") })).toThrow(/CLOCHE_SUBNET: each \/16 .* is in use/);
  });
});
