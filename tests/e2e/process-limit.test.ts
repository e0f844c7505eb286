// How many processes and threads a sandbox may have follows its memory; at the limit programs get an error, and nothing ends but what
// goes on trying.
import { expect, inject, test } from "vitest";
import { startBeside } from "../fixtures/beside.ts";
import { sharedClient } from "../fixtures/client.ts";

const client = sharedClient();

test.each([
  [256, 256],
  [1_024, 1_024],
])("of %i MB of memory is %i", async (memory_mb, limit) => {
  const sandbox = await client.create({ memory_mb });
  const script = `import os,threading,time
threading.stack_size(65536); n=0
try:
  while n<5000: threading.Thread(target=time.sleep,args=(1000,),daemon=True).start(); n+=1
except RuntimeError as e: print(e)
print(n,flush=True); os._exit(0)`;
  const { stdout, exit_code } = await client.exec(sandbox, ["python3", "-c", script]);
  expect([exit_code, stdout]).toEqual([0, expect.stringMatching(/^can't start new thread\n\d+\n$/)]);
  const reached = Number(stdout.split("\n")[1]);
  // A little beyond it where threads start side by side.
  expect(reached).toBeGreaterThan(limit * 0.9);
  expect(reached).toBeLessThan(limit * 1.2);
  expect((await client.exec(sandbox, ["echo", "alive"])).stdout).toBe("alive\n");
});

// In virtual machines the limit is one that nobody passes, and such a program is held there.
test.runIf(inject("service").runtime === "gvisor")(
  "programs that go on trying to start threads are ended far below what the kernel bears, and the rest lives",
  async () => {
    const sandbox = await client.create({ cpus: 1, memory_mb: 256 });
    const beside = await startBeside(client, sandbox);
    // Each alone would end at 4,095 threads: no program may have more in gVisor. They begin together, when the first of them has
    // made the others: at the limit it could not, and would end with an error of its own.
    const script = `import os,threading,time
threading.stack_size(65536)
begin,made=os.pipe()
for _ in range(7):
  if os.fork() == 0: break
os.close(made); os.read(begin,1)
while True:
  try: threading.Thread(target=time.sleep,args=(1000,),daemon=True).start()
  except RuntimeError: pass`;
    const began = performance.now();
    const bomb = await client.exec(sandbox, ["python3", "-c", script], { timeout_ms: 60_000 });
    expect(bomb).toMatchObject({ exit_code: 137, timed_out: false });
    expect((await client.exec(sandbox, ["echo", "fine"])).stdout).toBe("fine\n");
    expect(performance.now() - began).toBeLessThan(15_000);
    await beside.expectUnharmed();
    expect((await client.exec(sandbox, ["pgrep", "python3"])).stdout).toBe("");
  },
);
