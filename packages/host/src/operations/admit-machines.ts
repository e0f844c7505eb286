/**
 * Admission of a host that was declared lost and is back. A gateway names the machines that this host still owns. Every other machine
 * may run elsewhere by now: it is destroyed while frozen, so that it never runs here again, and its unfinished operations are dropped.
 */
import { allDone } from "@cloche/base";
import { cutOffAfter } from "./cut-off.ts";
import { destroyMachine } from "./destroy-machine.ts";
import type { OperationParts } from "./operation-parts.ts";

/** How long an operation on a machine that is no longer ours may go on. Its result is of no use. */
const patienceLimitMs = 1_000;

/** Destroys all machines except `ids` and returns their ids. Repeatable. Throws if one stays: then no machine may go on yet. */
export async function destroyAllBut(parts: OperationParts, ids: ReadonlySet<string>): Promise<string[]> {
  const { machines, queue, journal } = parts;
  const pending = (await journal.pending()).map(({ id }) => id);
  const known = new Set([...machines.all().map(({ id }) => id), ...queue.keys(), ...pending]);
  const others = [...known].filter((id) => !ids.has(id));
  const destroyOne = (id: string): Promise<void> =>
    queue.run(id, async () => {
      await destroyMachine(parts, id);
      // A cut-off create may have a journal entry but no record.
      await journal.remove(id);
    });
  await allDone(
    others.map((id) =>
      cutOffAfter(parts, id, patienceLimitMs, "the machine is no longer this host's", () => destroyOne(id)),
    ),
  );
  return others;
}
