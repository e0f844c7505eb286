// How many processes and threads a sandbox may have follows its memory; at the limit programs get an error, and nothing ends.
import { expect, test } from "vitest";
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
