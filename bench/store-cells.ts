/** The store over HTTPS with auth, against a no-op on the same route and the disk's own flush. */
import type { Lab } from "./lab.ts";
import type { Cell } from "./runner.ts";
import { rawClient } from "./sandbox-cells.ts";

/** Median in ms of 20 writes of a page with fdatasync, on the sandbox's disk. */
const bareFlush = `import os,time
f=os.open('/root/.bench-sync',os.O_CREAT|os.O_RDWR); t=[]
for i in range(20):
    a=time.perf_counter(); os.pwrite(f,os.urandom(4096),0); os.fdatasync(f); t.append(time.perf_counter()-a)
print(sorted(t)[10]*1000)`;

export async function storeCell(lab: Lab, samples: number): Promise<{ cell: Cell; close(): Promise<void> }> {
  const sandbox = await lab.cloche.create({ name: "bench-store" });
  const raw = await rawClient(lab, sandbox);
  const ask = async (method: string, path: string, wanted: number, body?: string): Promise<string> => {
    const answer = await raw.send(method, path, body);
    if (answer.status !== wanted) throw new Error(`${method} ${path}: ${answer.status}`);
    return answer.body.toString();
  };
  const flush = async (): Promise<number> => {
    const { stdout, stderr, ok } = await sandbox.exec(["python3", "-c", bareFlush]);
    if (!ok) throw new Error(stderr);
    return Number(stdout);
  };
  const noop = async (): Promise<number> => {
    const beganMs = performance.now();
    await ask("GET", "/v1/store/absent", 404);
    return performance.now() - beganMs;
  };
  let round = 0;
  const set = async (): Promise<void> => {
    round += 1;
    await ask("PUT", "/v1/store/bench", 200, `{"value":{"a":${round}}}`);
  };
  await set();
  const cell: Cell = {
    name: "store",
    samples,
    arms: [
      { name: "Cloche set, durable", run: set },
      {
        name: "no-op + one fdatasync in the sandbox",
        samples: Math.min(samples, 20),
        run: async () => (await flush()) + (await noop()),
      },
    ],
    targets: [{ arm: "Cloche set, durable", against: "no-op + one fdatasync in the sandbox", atMost: 2.2 }],
  };
  const close = async (): Promise<void> => {
    raw.close();
    await sandbox.delete();
  };
  return { cell, close };
}
