/** Terminals through TLS with auth, by the SDK: their first byte, and a key press. */
import type { Lab } from "./lab.ts";
import type { Cell } from "./runner.ts";
import { type RawClient, rawClient } from "./sandbox-cells.ts";
import { ran, type Sandbox, timed } from "./shared.ts";

function firstByte(sandbox: Sandbox, samples: number): Cell {
  const terminal = async (): Promise<number> => {
    const beganMs = performance.now();
    const process = await sandbox.processes.terminal(["echo", "x"]);
    const attached = await process.attach();
    const { value } = await attached[Symbol.asyncIterator]().next();
    const tookMs = performance.now() - beganMs;
    attached.close();
    if (value?.type !== "stdout") throw new Error("no first byte");
    await process.delete();
    return tookMs;
  };
  return {
    name: "first byte of a terminal",
    samples,
    arms: [
      { name: "terminal, first byte", run: terminal },
      { name: "exec of true", run: () => timed(() => ran(sandbox)) },
    ],
    targets: [{ arm: "terminal, first byte", against: "exec of true", atMost: 2.5 }],
  };
}

async function keyPress(sandbox: Sandbox, raw: RawClient, samples: number): Promise<Cell> {
  const process = await sandbox.processes.terminal(["sleep", "100000"]);
  const attached = await process.attach();
  const events = attached[Symbol.asyncIterator]();
  const press = async (): Promise<void> => {
    await attached.write("x");
    const { value } = await events.next();
    if (value?.type !== "stdout") throw new Error("no echo");
  };
  const noop = async (): Promise<void> => {
    const { status } = await raw.send("GET", "/v1/store/absent");
    if (status !== 404) throw new Error(`no-op: ${status}`);
  };
  return {
    name: "a key press to its echo",
    samples,
    arms: [
      { name: "key press to echo", run: press },
      { name: "authenticated no-op", run: noop },
    ],
    targets: [{ arm: "key press to echo", against: "authenticated no-op", atMost: 1.5 }],
  };
}

export async function terminalCells(
  lab: Lab,
  samples: number,
): Promise<{ cells: Cell[]; close(): Promise<void> }> {
  const sandbox = await lab.cloche.create({ name: "bench-terminal" });
  const raw = await rawClient(lab, sandbox);
  const cells = [firstByte(sandbox, samples), await keyPress(sandbox, raw, samples)];
  return {
    cells,
    async close() {
      raw.close();
      await sandbox.delete();
    },
  };
}
