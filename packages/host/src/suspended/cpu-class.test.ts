import { describe, expect, it } from "vitest";
import { cpuClassOf, readCpuClass } from "./cpu-class.ts";

const amd = `processor	: 0
vendor_id	: AuthenticAMD
cpu family	: 26
model		: 2
model name	: AMD EPYC
microcode	: 0x1
cpu MHz		: 2700.000
flags		: fpu de tsc msr cx8 sse sse2 constant_tsc avx2 hypervisor smep

processor	: 1
vendor_id	: AuthenticAMD
cpu family	: 26
model		: 2
flags		: fpu
`;
const classOf = (cpuinfo: string, arch = "x64"): string => cpuClassOf({ cpuinfo, arch });

describe("the class of a processor", () => {
  it("names maker, family and model, and stands for the flags", () => {
    expect(classOf(amd)).toMatch(/^x64-authenticamd-26-2-[0-9a-f]{8}$/);
  });

  it.each([
    ["another speed", (text: string) => text.replace("2700.000", "3100.000")],
    ["another microcode", (text: string) => text.replace("0x1", "0x2")],
    ["flags in another order", (text: string) => text.replace("sse sse2", "sse2 sse")],
    ["no hypervisor below", (text: string) => text.replace(" hypervisor", "")],
    ["another kernel's mitigations", (text: string) => text.replace("smep", "smep ibpb stibp md_clear")],
  ])("is the same with %s", (_, change) => {
    expect(classOf(change(amd))).toBe(classOf(amd));
  });

  it.each([
    ["without an instruction", (text: string) => text.replace(" avx2", "")],
    ["with an instruction that is not known here", (text: string) => text.replace("smep", "smep newer_isa")],
    ["of another model", (text: string) => text.replace("model		: 2", "model		: 17")],
    ["of another maker", (text: string) => text.replace("AuthenticAMD", "GenuineIntel")],
  ])("is another %s", (_, change) => {
    expect(classOf(change(amd))).not.toBe(classOf(amd));
  });

  it("is another on another architecture, and reads what arm64 says", () => {
    const arm = "processor\t: 0\nFeatures\t: fp asimd sve\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n";
    expect(classOf(arm, "arm64")).toMatch(/^arm64-0x41-0xd40-[0-9a-f]{8}$/);
    expect(classOf(arm.replace(" sve", ""), "arm64")).not.toBe(classOf(arm, "arm64"));
    expect(classOf(amd, "arm64")).not.toBe(classOf(amd));
  });
});

it("says the same of this computer each time", async () => {
  expect(await readCpuClass()).toBe(await readCpuClass());
});
