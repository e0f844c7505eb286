// Looks at many machines, some side by side. A machine that does not answer holds up neither the others nor the round: after a
// moment its place is given to the next, and until its look has ended it is not looked at again.
import type { Clock } from "./clock.ts";
import { eachPatiently } from "./each-patiently.ts";

/** Looked at side by side. */
const AT_ONCE = 8;
/** What answers does so in milliseconds; on a host under heavy load, in tenths of a second. */
const PATIENCE_MS = 250;

export class Looks {
  readonly #clock: Clock;
  /** Machines whose look goes on: each ends by its call's own deadline. */
  readonly #underWay = new Set<string>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Resolves when each machine was looked at or had its time. `look` handles its own errors; `isOver`: no more are begun. */
  async each<Subject extends { id: string }>(
    subjects: readonly Subject[],
    look: (subject: Subject) => Promise<void>,
    isOver?: () => boolean,
  ): Promise<void> {
    const lookOnce = async (subject: Subject): Promise<void> => {
      this.#underWay.add(subject.id);
      await look(subject).finally(() => this.#underWay.delete(subject.id));
    };
    const begun = await eachPatiently(
      subjects.filter(({ id }) => !this.#underWay.has(id)),
      lookOnce,
      { clock: this.#clock, atOnce: AT_ONCE, patienceMs: PATIENCE_MS, ...(isOver && { isOver }) },
    );
    // Those that had their time go on.
    void begun;
  }
}
