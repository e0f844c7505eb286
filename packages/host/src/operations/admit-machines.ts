// A host that was declared lost is back, and a gateway says which machines are still its own. All others may run elsewhere by now: they
// are destroyed while they are frozen, so that they never run again, and operations on them that were cut off are dropped.
import { allDone } from "@cloche/base";
import { cutOffAfter } from "./cut-off.ts";
import { destroyMachine } from "./destroy-machine.ts";
import type { OperationParts } from "./operation-parts.ts";

/** What is under way with a machine that is no longer ours is of no use. */
const PATIENCE_MS = 1_000;

/** Answers which were destroyed. Repeatable. Throws where one could not be: then none may go on yet. */
export async function destroyAllBut(parts: OperationParts, ids: ReadonlySet<string>): Promise<string[]> {
  const { machines, queue, journal } = parts;
  const pending = (await journal.pending()).map(({ id }) => id);
  const known = new Set([...machines.all().map(({ id }) => id), ...queue.keys(), ...pending]);
  const others = [...known].filter((id) => !ids.has(id));
  const destroyOne = (id: string): Promise<void> =>
    queue.run(id, async () => {
      await destroyMachine(parts, id);
      // Of one that had no record yet.
      await journal.remove(id);
    });
  await allDone(
    others.map((id) =>
      cutOffAfter(parts, id, PATIENCE_MS, "the machine is no longer this host's", () => destroyOne(id)),
    ),
  );
  return others;
}
