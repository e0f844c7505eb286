/** Create, fork, checkpoint, restore, suspend and resume, against what runsc's own commands take for a tiny static program. */
import type { Lab } from "./lab.ts";
import { type OpenCells, ran, resumed, shell, suspended, timed } from "./shared.ts";

const storedMib = 1_024;

export async function lifecycleCells(lab: Lab, samples: number): Promise<OpenCells> {
  const { cloche, runsc } = lab;
  const stored = await cloche.create({ name: "bench-stored" });
  const source = await cloche.create({ name: "bench-source" });
  await ran(stored, shell(`head -c ${storedMib}M /dev/urandom > /root/data && sync`));
  await ran(source);
  const taken: string[] = [];
  const checkpoint = async (): Promise<number> => {
    let id = "";
    const tookMs = await timed(async () => {
      id = (await stored.checkpoints.create({})).checkpoint_id;
    });
    taken.push(id);
    // Durable before the next sample. Kept to the end, so that the next one's upload shares what it has in common with this.
    await stored.checkpoints.wait(id, { timeout_secs: 300 });
    return tookMs;
  };
  const first = await source.checkpoints.create({});
  /** What `make` makes is deleted after the clock has stopped. */
  const toFirstExec = async (make: () => ReturnType<typeof cloche.create>): Promise<number> => {
    const beganMs = performance.now();
    const made = await make();
    await ran(made);
    const tookMs = performance.now() - beganMs;
    await made.delete();
    return tookMs;
  };
  const cells = [
    {
      name: "lifecycle of a sandbox",
      plot: "lifecycle",
      samples,
      arms: [
        { name: "create to first exec", run: () => toFirstExec(() => cloche.create({})) },
        { name: "fork to first exec", run: () => toFirstExec(() => source.fork({})) },
        { name: "checkpoint, 1 GiB of data", run: checkpoint },
        {
          name: "restore to first exec",
          run: () =>
            timed(async () => {
              await source.restore(first.checkpoint_id);
              await ran(source);
            }),
        },
        {
          name: "suspend to SUSPENDED",
          run: async () => {
            const tookMs = await timed(() => suspended(source));
            await resumed(source);
            return tookMs;
          },
        },
        {
          name: "resume to first exec",
          run: async () => {
            await suspended(source);
            return await timed(() => resumed(source));
          },
        },
        { name: "runsc run true", run: () => timed(() => runsc.runToEnd(["true"])) },
        { name: "runsc checkpoint", run: async () => (await runsc.checkpointAndRestore()).checkpointMs },
        { name: "runsc restore", run: async () => (await runsc.checkpointAndRestore()).restoreMs },
        {
          name: "runsc checkpoint + restore",
          run: async () => {
            const { checkpointMs, restoreMs } = await runsc.checkpointAndRestore();
            return checkpointMs + restoreMs;
          },
        },
      ],
      targets: [
        { arm: "create to first exec", against: "runsc run true", atMost: 0.55 },
        { arm: "fork to first exec", against: "runsc checkpoint + restore", atMost: 2.6 },
        { arm: "checkpoint, 1 GiB of data", against: "runsc checkpoint", atMost: 0.5 },
        { arm: "restore to first exec", against: "runsc restore", atMost: 1.4 },
        { arm: "suspend to SUSPENDED", against: "runsc checkpoint", atMost: 5.3 },
        { arm: "resume to first exec", against: "runsc restore", atMost: 3 },
      ],
      // Machines that an arm took from the pool are replaced before the next arm runs.
      settle: () => lab.poolFull(),
    },
  ];
  return {
    cells,
    async close() {
      await source.checkpoints.delete(first.checkpoint_id);
      for (const id of taken) await stored.checkpoints.delete(id);
      await Promise.all([stored.delete(), source.delete()]);
    },
  };
}
