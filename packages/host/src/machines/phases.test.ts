import { describe, expect, it } from "vitest";
import { machinePhases, nextPhase, phaseTable, type PhaseTrigger } from "./phases.ts";

describe("the table of phases", () => {
  it("refuses what is no way", () => {
    expect(() => nextPhase("stopped", "suspend")).toThrow("no suspend from stopped");
    expect(() => nextPhase("failed", "started")).toThrow("no started from failed");
    expect(() => nextPhase("destroying", "start")).toThrow("no start from destroying");
  });

  it("leads each trigger to one phase, from that phase too, so that a step can be repeated", () => {
    const targets = new Map<string, Set<string>>();
    for (const row of Object.values(phaseTable))
      for (const [trigger, to] of Object.entries(row))
        targets.set(trigger, (targets.get(trigger) ?? new Set()).add(to));
    for (const [trigger, [to = "", ...others]] of targets) {
      expect(others, trigger).toEqual([]);
      expect(phaseTable[to as keyof typeof phaseTable][trigger as PhaseTrigger], trigger).toBe(to);
    }
  });

  it("lets a machine be given up and destroyed wherever it is", () => {
    for (const phase of machinePhases) {
      expect(nextPhase(phase, "gave_up")).toBe("failed");
      expect(nextPhase(phase, "destroy")).toBe("destroying");
    }
  });

  it("leaves no phase but by its ways: a machine that failed is destroyed, or its resume undone", () => {
    expect(Object.values(phaseTable.failed).sort()).toEqual(["destroying", "failed", "suspended"]);
    expect(new Set(Object.values(phaseTable.destroying))).toEqual(new Set(["failed", "destroying"]));
  });
});
