import { ClocheError } from "@cloche/protocol";

/** Who bytes are held for, and the most that may be held for all with the same key. */
export interface HeldFor {
  key: string;
  most: number;
}

/** What one request holds. */
export interface Hold {
  /** Throws `resource_exhausted` when more would be held than one of the scopes allows. */
  add(bytes: number): void;
  /** Gives all back; may be called twice. */
  release(): void;
}

/** Counts bytes of requests that are in memory, for a connection, a team, the process. */
export class HeldBytes {
  readonly #held = new Map<string, number>();

  of(key: string): number {
    return this.#held.get(key) ?? 0;
  }

  hold(scopes: readonly HeldFor[]): Hold {
    let own = 0;
    return {
      add: (bytes) => {
        const full = scopes.find(({ key, most }) => this.of(key) + bytes > most);
        if (full !== undefined)
          throw new ClocheError(
            "resource_exhausted",
            `requests under way hold ${full.most} bytes; send less at once`,
            {
              resource: "body",
              retryAfterSeconds: 1,
            },
          );
        own += bytes;
        for (const { key } of scopes) this.#held.set(key, this.of(key) + bytes);
      },
      release: () => {
        for (const { key } of scopes) {
          const left = this.of(key) - own;
          if (left > 0) this.#held.set(key, left);
          else this.#held.delete(key);
        }
        own = 0;
      },
    };
  }
}
