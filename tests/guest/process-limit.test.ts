// The limit of processes is one for all guests of an agent, and stays when a container ends.
import { rmSync } from "node:fs";
import { join } from "node:path";
import { expect, it, onTestFinished } from "vitest";
import { type Guest, NativeSpawner } from "../../packages/agent/src/spawner/index.ts";
import { guestBinary, guestOptions, isRoot, makeDisk, maxProcesses } from "./guest-fixture.ts";

const START_MANY = `import os, time
started = 0
try:
  while started < 2000:
    if os.fork() == 0: time.sleep(1000)
    started += 1
except OSError: pass
print(started)`;

/** How many processes a program in `guest` can start. */
async function startable(guest: Guest): Promise<number> {
  let text = "";
  const process = guest.launch({
    argv: ["python3", "-c", START_MANY],
    env: { PATH: "/bin:/usr/bin" },
    tree: "hold",
    onOutput: (_stream, chunk) => void (text += chunk.toString()),
  });
  await process.exited;
  await process.kill();
  return Number(text);
}

it.skipIf(!isRoot)("programs are held to their limit after a container has ended too", async () => {
  const spawner = new NativeSpawner(await guestBinary(), guestOptions);
  const [disk, other] = [makeDisk(), makeDisk()];
  onTestFinished(async () => {
    await spawner.detach();
    for (const folder of [disk, other]) rmSync(folder, { recursive: true, force: true });
  });
  await spawner.attach(disk);
  expect(await startable(spawner.guest)).toBeLessThan(2 * maxProcesses);
  for (const id of ["one", "two"]) {
    const container = await spawner.openContainer(id, { ...guestOptions, root: join(other, "fs") });
    expect(await startable(container)).toBeLessThan(2 * maxProcesses);
    await container.close();
    expect(await startable(spawner.guest)).toBeLessThan(2 * maxProcesses);
  }
});
