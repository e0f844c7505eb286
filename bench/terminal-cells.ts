/** Terminals through TLS with auth, by the SDK: their first byte, a key press, a replay, and many that nobody types into (issue 29). */
import type { Lab } from "./lab.ts";
import { cpuSeconds, sandboxProcesses } from "./process-figures.ts";
import type { Cell } from "./runner.ts";

type Sandbox = Awaited<ReturnType<Lab["cloche"]["create"]>>;
type Process = Awaited<ReturnType<Sandbox["processes"]["start"]>>;
type Attached = Awaited<ReturnType<Process["attach"]>>;
type Output = Attached | ReturnType<Process["events"]>;

const replayBytes = 1_048_576;
const idleTerminals = 100;
/** How long after its last request a sandbox is looked at, and for how long. */
const idleAfterMs = 15_000;
const lookMs = 10_000;
const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

/** A key and its echo on a bare pty, 200 times; the median in ms. */
const bareEcho = `import os,pty,time,tty
master,slave=pty.openpty()
t=[]
for i in range(200):
    a=time.perf_counter(); os.write(master,b'x'); os.read(master,1); t.append(time.perf_counter()-a)
print(sorted(t)[100]*1000)`;

/** Reads output until so many bytes have come; detaches. */
async function receive(output: Output, bytes: number): Promise<void> {
  let come = 0;
  for await (const event of output) {
    if (event.type === "stdout") come += event.data.length;
    if (come >= bytes) return;
    if (event.type === "exit") break;
  }
  if (come < bytes) throw new Error(`${come} bytes came`);
}

function firstByte(sandbox: Sandbox, samples: number): Cell {
  /** An attachment makes a connection of its own; events come on one that is kept. */
  const terminal = async (read: (process: Process) => Promise<Output>): Promise<number> => {
    const beganMs = performance.now();
    const process = await sandbox.processes.terminal(["echo", "x"]);
    await receive(await read(process), 1);
    const tookMs = performance.now() - beganMs;
    await process.delete();
    return tookMs;
  };
  const exec = async (): Promise<void> => {
    if (!(await sandbox.exec(["true"])).ok) throw new Error("exec of true");
  };
  return {
    name: "first byte of a terminal",
    samples,
    arms: [
      { name: "terminal, first byte", run: () => terminal((process) => process.attach()) },
      { name: "terminal, first byte by events", run: () => terminal(async (process) => process.events()) },
      { name: "exec of true", run: exec },
    ],
    targets: ["terminal, first byte", "terminal, first byte by events"].map((arm) => ({
      arm,
      against: "exec of true",
      atMost: 1.5,
      from: "issue 29",
    })),
  };
}

async function keyPress(sandbox: Sandbox, samples: number): Promise<Cell> {
  const process = await sandbox.processes.terminal(["sleep", "100000"]);
  const attached = await process.attach();
  const events = attached[Symbol.asyncIterator]();
  const press = async (): Promise<void> => {
    await attached.write("x");
    const { value } = await events.next();
    if (value?.type !== "stdout") throw new Error("no echo");
  };
  return {
    name: "a key press to its echo",
    samples,
    arms: [
      { name: "key press to echo", run: press },
      {
        name: "bare pty in the sandbox",
        samples: Math.min(samples, 20),
        run: async () => Number((await sandbox.exec(["python3", "-c", bareEcho])).stdout),
      },
    ],
    targets: [
      {
        arm: "key press to echo",
        against: "bare pty in the sandbox",
        atMost: 3,
        unit: "ms-more",
        from: "issue 29",
      },
    ],
  };
}

async function replay(sandbox: Sandbox, samples: number): Promise<Cell> {
  const write = `head -c ${replayBytes} /dev/zero | tee /root/replay; sleep 100000`;
  const process = await sandbox.processes.start(["sh", "-c", write]);
  await receive(await process.attach(), replayBytes);
  return {
    name: "1 MiB of replay",
    samples,
    arms: [
      { name: "attach, 1 MiB of replay", run: async () => receive(await process.attach(), replayBytes) },
      {
        name: "file read of 1 MiB",
        run: async () => {
          const { length } = await sandbox.files.read("/root/replay");
          if (length !== replayBytes) throw new Error(`${length} bytes were read`);
        },
      },
    ],
    targets: [{ arm: "attach, 1 MiB of replay", against: "file read of 1 MiB", atMost: 2, from: "issue 29" }],
  };
}

export async function terminalCells(
  lab: Lab,
  samples: number,
): Promise<{ cells: Cell[]; close(): Promise<void> }> {
  const sandbox = await lab.cloche.create({ name: "bench-terminal" });
  const cells = [
    firstByte(sandbox, samples),
    await keyPress(sandbox, samples),
    await replay(sandbox, samples),
  ];
  return { cells, close: () => sandbox.delete() };
}

/** A sandbox with idle shells on terminals of their own, and who is attached to them. */
async function idleShells(
  lab: Lab,
  isAttached: boolean,
): Promise<{ sandbox: Sandbox; attached: Attached[] }> {
  const sandbox = await lab.cloche.create({ name: `bench-idle-terminals-${isAttached ? "1" : "0"}` });
  const attached: Attached[] = [];
  for (let made = 0; made < idleTerminals; made += 1) {
    const process = await sandbox.processes.terminal(["sh"]);
    if (!isAttached) continue;
    const terminal = await process.attach();
    attached.push(terminal);
    await terminal[Symbol.asyncIterator]().next(); // its prompt
  }
  return { sandbox, attached };
}

/** The figures stand in the column of times: milliseconds of CPU in ten seconds. A running process keeps a sandbox from dozing. */
export async function idleTerminalsCell(lab: Lab): Promise<{ cell: Cell; close(): Promise<void> }> {
  const ours = await idleShells(lab, true);
  const alone = await idleShells(lab, false);
  await sleep(idleAfterMs);
  const cpuMs = async ({ sandbox }: { sandbox: Sandbox }): Promise<number> => {
    const before = cpuSeconds(await sandboxProcesses(lab, sandbox.id));
    await sleep(lookMs);
    return (cpuSeconds(await sandboxProcesses(lab, sandbox.id)) - before) * 1_000;
  };
  const arms = { ours: "100 idle terminals, attached", alone: "100 idle terminals, nobody attached" };
  const cell: Cell = {
    name: "CPU of a sandbox with 100 idle terminals (ms in 10 s)",
    samples: 3,
    warmups: 0,
    arms: [
      { name: arms.ours, run: () => cpuMs(ours) },
      { name: arms.alone, run: () => cpuMs(alone) },
    ],
    targets: [{ arm: arms.ours, against: arms.alone, atMost: 100, unit: "ms-more", from: "issue 29" }],
  };
  const close = async (): Promise<void> => {
    for (const terminal of ours.attached) terminal.close();
    await ours.sandbox.delete();
    await alone.sandbox.delete();
  };
  return { cell, close };
}
