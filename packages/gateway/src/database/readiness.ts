/** Whether a database answers and can be written. */
import { ClocheError } from "@cloche/protocol";

/** Load balancers and Kubernetes wait a second for an answer by default. */
export const readinessMs = 500;

/**
 * Looks at the database once at a time, however often somebody asks, and answers within `readinessMs`. A look that takes
 * longer goes on, and until it ends the answer is at once that the database is not ready.
 */
export class Readiness {
  readonly #look: () => Promise<void>;
  #answer: Promise<void> | undefined;

  constructor(look: () => Promise<void>) {
    this.#look = look;
  }

  /** Throws `unavailable` with the reason. */
  check(): Promise<void> {
    this.#answer ??= this.#begin();
    return this.#answer;
  }

  #begin(): Promise<void> {
    const looking = this.#look();
    const late = Promise.withResolvers<never>();
    const timer = setTimeout(() => late.reject(noAnswer()), readinessMs);
    const over = (): void => {
      clearTimeout(timer);
      this.#answer = undefined;
    };
    looking.then(over, over);
    return Promise.race([looking, late.promise]);
  }
}

const noAnswer = (): ClocheError =>
  new ClocheError(
    "unavailable",
    `the service's database has not answered for ${readinessMs} ms; if it is SQLite, another program may have locked it`,
    { retryAfterSeconds: 1 },
  );
