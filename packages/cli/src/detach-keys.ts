/** Ctrl-P Ctrl-Q detaches, as in Docker; the process goes on. */
const detachKeys = Buffer.from([0x10, 0x11]);

/**
 * Finds the detach sequence in what is typed, also if its keys come one by one. Ctrl-P is held back until the next key:
 * a process that the user leaves does not get it, and would repeat the last command with it.
 */
export class DetachKeys {
  #isHeld = false;

  /** The bytes that go to the process, and whether the sequence came after them. */
  feed(piece: Buffer): { send: Buffer; detached: boolean } {
    const typed = this.#isHeld ? Buffer.concat([detachKeys.subarray(0, 1), piece]) : piece;
    this.#isHeld = false;
    const at = typed.indexOf(detachKeys);
    if (at !== -1) return { send: typed.subarray(0, at), detached: true };
    this.#isHeld = typed.at(-1) === detachKeys[0];
    return { send: this.#isHeld ? typed.subarray(0, -1) : typed, detached: false };
  }

  /** What is held back when the input ends. */
  end(): Buffer {
    return this.#isHeld ? detachKeys.subarray(0, 1) : Buffer.alloc(0);
  }
}
