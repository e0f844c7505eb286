/** Suspend and resume, idle and with memory in use, against runsc's checkpoint and restore. */
import type { Lab } from "../lab.ts";
import type { Cell } from "../runner.ts";
import { type OpenCell, type Sandbox, shell, timed } from "./shared.ts";

const suspended = async (sandbox: Sandbox): Promise<void> => {
  await sandbox.suspend();
  await sandbox.waitFor("SANDBOX_STATE_SUSPENDED");
};

const resumed = async (sandbox: Sandbox): Promise<void> => {
  await sandbox.resume();
  await sandbox.waitFor("SANDBOX_STATE_RUNNING");
  const { exit_code: code } = await sandbox.exec(["true"]);
  if (code !== 0) throw new Error("first exec after a resume");
};

export async function suspendCell(lab: Lab, samples: number): Promise<OpenCell> {
  const idle = await lab.cloche.create({ name: "bench-suspend-idle" });
  const full = await lab.cloche.create({ name: "bench-suspend-500" });
  const holder = `import time
held = bytearray(open("/dev/urandom", "rb").read(500_000_000))
open("/root/held", "w").close()
time.sleep(1e6)`;
  await full.services.put("holder", { cmd: "python3", args: ["-c", holder] });
  await full.services.start("holder");
  await full.exec(shell("until [ -e /root/held ]; do sleep 0.1; done"));
  const suspend = (sandbox: Sandbox) => async (): Promise<number> => {
    const tookMs = await timed(() => suspended(sandbox));
    await resumed(sandbox);
    return tookMs;
  };
  const resume = (sandbox: Sandbox) => async (): Promise<number> => {
    await suspended(sandbox);
    return await timed(() => resumed(sandbox));
  };
  const slow = Math.min(samples, 20);
  const cell: Cell = {
    name: "suspend and resume",
    samples,
    warmups: 1,
    arms: [
      { name: "suspend, idle", run: suspend(idle) },
      { name: "resume to first exec, idle", run: resume(idle) },
      { name: "suspend, 500 MB resident", samples: slow, run: suspend(full) },
      { name: "resume to first exec, 500 MB resident", samples: slow, run: resume(full) },
      {
        name: "runsc checkpoint of the agent",
        run: async () => (await lab.runsc.checkpointAndRestore("agent")).checkpointMs,
      },
      {
        name: "runsc restore of the agent",
        run: async () => (await lab.runsc.checkpointAndRestore("agent")).restoreMs,
      },
      { name: "runsc do true", run: () => lab.runsc.doTrue() },
    ],
    targets: [
      { arm: "resume to first exec, idle", against: "runsc do true", atMost: 1.9, from: "issue 26" },
      {
        arm: "resume to first exec, idle",
        against: "runsc restore of the agent",
        atMost: 1.2,
        from: "issue 4",
      },
    ],
  };
  return {
    cell,
    async close() {
      await Promise.all([idle.delete(), full.delete()]);
    },
  };
}
