/**
 * Looks at many machines, some at once. A machine that does not answer delays neither the others nor the round: after a
 * short time the next machine takes its place, and the slow machine is not looked at again before its look has ended.
 */
import type { Clock } from "./clock.ts";
import { eachPatiently } from "./each-patiently.ts";

/** Machines that are looked at at once. */
const atOnceMax = 8;
/** A healthy machine answers within milliseconds; on a host under heavy load, within tenths of a second. */
const patienceLimitMs = 250;

export class Polls {
  readonly #clock: Clock;
  /** Machines whose look is under way; each look ends by its call's own deadline. */
  readonly #underWay = new Set<string>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Resolves when each look has ended or used up its time. `look` handles its errors; `isOver`: begin no more. */
  async each<Subject extends { id: string }>(
    subjects: readonly Subject[],
    poll: (subject: Subject) => Promise<void>,
    isOver?: () => boolean,
  ): Promise<void> {
    const pollOnce = async (subject: Subject): Promise<void> => {
      this.#underWay.add(subject.id);
      await poll(subject).finally(() => this.#underWay.delete(subject.id));
    };
    const begun = await eachPatiently(
      subjects.filter(({ id }) => !this.#underWay.has(id)),
      pollOnce,
      { clock: this.#clock, atOnce: atOnceMax, patienceMs: patienceLimitMs, ...(isOver && { isOver }) },
    );
    // Slow looks go on.
    void begun;
  }
}
