import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { runSaga, SagaUndoError, type SagaRecord, type SagaStep } from "./saga.ts";

interface World {
  made: Set<string>;
  log: string[];
}

const stepNames = ["record", "disk", "network", "machine", "publish"];

function stepsOn(world: World, failing: { step?: string; undo?: string } = {}): SagaStep<object>[] {
  return stepNames.map((name) => ({
    name,
    async do() {
      world.log.push(`do ${name}`);
      if (failing.step === name) throw new Error(`${name} broke`);
      world.made.add(name);
    },
    async undo() {
      world.log.push(`undo ${name}`);
      if (failing.undo === name) throw new Error(`undo ${name} broke`);
      world.made.delete(name);
    },
  }));
}

class MemoryJournal {
  saved = new Map<string, string>();
  saves = 0;
  crashAtSave = Number.POSITIVE_INFINITY;
  async save(record: SagaRecord<object>): Promise<void> {
    this.saves += 1;
    if (this.saves > this.crashAtSave) throw new Crash();
    this.saved.set(record.id, JSON.stringify(record));
  }
  async remove(id: string): Promise<void> {
    this.saved.delete(id);
  }
}
class Crash extends Error {}

const fresh = (): SagaRecord<object> => ({
  id: "op-1",
  kind: "create",
  begun: [],
  direction: "forward",
  context: {},
});

describe("runSaga", () => {
  it("does every step once and leaves no journal", async () => {
    const world: World = { made: new Set(), log: [] };
    const journal = new MemoryJournal();
    await runSaga(fresh(), stepsOn(world), journal);
    expect(world.log).toEqual(stepNames.map((name) => `do ${name}`));
    expect(journal.saved.size).toBe(0);
  });

  it.each(stepNames)("undoes everything when step %s fails", async (step) => {
    const world: World = { made: new Set(), log: [] };
    const journal = new MemoryJournal();
    await expect(runSaga(fresh(), stepsOn(world, { step }), journal)).rejects.toThrow(`${step} broke`);
    expect([...world.made]).toEqual([]);
    expect(world.log.at(-1)).toBe("undo record");
    expect(journal.saved.size).toBe(0);
  });

  it("keeps the journal when an undo fails, and finishes undoing when run again", async () => {
    const world: World = { made: new Set(), log: [] };
    const journal = new MemoryJournal();
    const failing = { step: "machine", undo: "disk" };
    await expect(runSaga(fresh(), stepsOn(world, failing), journal)).rejects.toBeInstanceOf(SagaUndoError);
    const left = JSON.parse(journal.saved.get("op-1") ?? "null") as SagaRecord<object>;
    await expect(runSaga(left, stepsOn(world), journal)).rejects.toThrow("machine broke");
    expect([...world.made]).toEqual([]);
    expect(journal.saved.size).toBe(0);
  });

  it("a crash at any save, then a new run, ends complete or wholly undone", async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.integer({ min: 0, max: 12 }),
        fc.option(fc.constantFrom(...stepNames), { nil: undefined }),
        async (crashAtSave, step) => {
          const world: World = { made: new Set(), log: [] };
          const journal = new MemoryJournal();
          journal.crashAtSave = crashAtSave;
          const failing = step === undefined ? {} : { step };
          await runSaga(fresh(), stepsOn(world, failing), journal).catch(() => undefined);
          journal.crashAtSave = Number.POSITIVE_INFINITY;
          const left = journal.saved.get("op-1");
          if (left !== undefined) {
            await runSaga(JSON.parse(left) as SagaRecord<object>, stepsOn(world, failing), journal).catch(
              () => undefined,
            );
          }
          expect(journal.saved.size).toBe(0);
          expect([0, stepNames.length]).toContain(world.made.size);
        },
      ),
    );
  });
});
