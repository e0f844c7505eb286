/** Doze of a host in this process: the test says which machine dozes, and sees who is kept awake. */
import type { KeptAwake } from "../upstream/agent-pool.ts";

export class FakeDoze {
  readonly dozing = new Set<string>();
  /** Sandbox ids that were roused, in order. */
  readonly roused: string[] = [];
  /** How many keep a machine awake now. */
  held = 0;
  /** What a rouse waits for. */
  onRouse: () => Promise<void> = async () => undefined;

  readonly keepAwake = (sandboxId: string): KeptAwake => {
    this.held += 1;
    let isHeld = true;
    return {
      awake: this.dozing.has(sandboxId) ? this.#rouse(sandboxId) : undefined,
      release: () => {
        if (isHeld) this.held -= 1;
        isHeld = false;
      },
    };
  };

  async #rouse(sandboxId: string): Promise<void> {
    this.roused.push(sandboxId);
    await this.onRouse();
    this.dozing.delete(sandboxId);
  }
}
