/**
 * Bounds what this process holds in memory for E2B's clients: lists of directories while they are answered, and events
 * that no client has asked for yet. The programs of a sandbox decide how large both become, and all teams share this
 * process.
 */
import { asBuffer } from "@cloche/base";
import { GatheredBytes } from "@cloche/protocol";

const mib = 1_048_576;

/** For all sandboxes together, those of one team, and for one of them. */
export const heldBytesMax = { all: 128 * mib, ofTeam: 32 * mib, ofSandbox: 8 * mib } as const;

export class HeldBytes {
  readonly #max: number;
  readonly #all: HeldBytes | undefined;
  #held = 0;

  /** `all`: the bound that this one shares with others. */
  constructor(max: number, all?: HeldBytes) {
    this.#max = max;
    this.#all = all;
  }

  /** False, and nothing is taken: there is no room for so many. */
  take(bytes: number): boolean {
    if (this.#held + bytes > this.#max || this.#all?.take(bytes) === false) return false;
    this.#held += bytes;
    return true;
  }

  give(bytes: number): void {
    this.#held -= bytes;
    this.#all?.give(bytes);
  }
}

/** Reads JSON and calls `use` with it. The bytes are held until `use` ends. Throws `tooLarge` when there is no room. */
export async function withJson<Answer, Result>(
  body: AsyncIterable<Uint8Array>,
  held: HeldBytes,
  tooLarge: () => Error,
  use: (answer: Answer) => Promise<Result>,
): Promise<Result> {
  const gathered = new GatheredBytes();
  let bytes = 0;
  try {
    for await (const piece of body) {
      if (!held.take(piece.length)) throw tooLarge();
      bytes += piece.length;
      gathered.push(piece);
    }
    const answer = JSON.parse(asBuffer(gathered.take()).toString()) as Answer;
    return await use(answer);
  } finally {
    held.give(bytes);
  }
}
