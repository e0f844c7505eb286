import type { Lab } from "./lab.ts";
import type { Cell } from "./runner.ts";

/** `npm start` again on a set-up home, to ready. */
export function startCell(lab: Lab, samples: number): { cell: Cell; close(): Promise<void> } {
  const again = async (): Promise<number> => {
    await lab.service.stop();
    const beganMs = performance.now();
    await lab.service.start();
    return performance.now() - beganMs;
  };
  const bound = { name: "5 s", run: async () => 5_000 };
  const cell: Cell = {
    name: "second npm start, to ready",
    samples,
    warmups: 0,
    arms: [{ name: "npm start -- --detach", run: again }, bound],
    targets: [{ arm: "npm start -- --detach", against: "5 s", atMost: 1 }],
  };
  return { cell, close: async () => undefined };
}
