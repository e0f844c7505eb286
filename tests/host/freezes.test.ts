// What stands still and goes on: a sentry that is frozen over and over, and the instant that a checkpoint is of.
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, expect, it } from "vitest";
import { HostLab } from "./host-lab.ts";

let lab: HostLab;
beforeAll(async () => {
  lab = await HostLab.open();
});
afterAll(async () => {
  await lab.destroyAll();
  await lab.close();
});

const FREEZES = 1_000;

/** Each counts in a file of its name in /dev/shm: by timers, threads, a pipe, new processes, and system calls without a rest. */
const counters = {
  node: `node -e 'let n = 0; setInterval(() => require("fs").writeFileSync("/dev/shm/node", String(++n)), 5)'`,
  threads: `python3 -c '
import threading, time
n, lock = [0], threading.Lock()
def work():
    while True:
        with lock:
            n[0] += 1
            with open("/dev/shm/threads", "w") as f: f.write(str(n[0]))
        time.sleep(0.001)
threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads]'`,
  pipe: `python3 -c '
import os
r, w = os.pipe()
if os.fork():
    n = 0
    while os.read(r, 1):
        n += 1
        with open("/dev/shm/pipe", "w") as f: f.write(str(n))
else:
    while True: os.write(w, b"x")'`,
  processes: `sh -c 'n=0; while :; do n=$((n+1)); echo $n > /dev/shm/processes; /bin/true; done'`,
};

it(`${FREEZES} freezes, with and without work in between, end no process`, async () => {
  const { sandboxId } = await lab.create();
  for (const command of Object.values(counters))
    await lab.exec(sandboxId, "sh", "-c", `${command} > /dev/null 2>&1 &`);
  const names = Object.keys(counters);
  const counts = async (): Promise<number[]> => {
    const said = await lab.exec(
      sandboxId,
      "sh",
      "-c",
      `cd /dev/shm; for f in ${names.join(" ")}; do echo $(cat $f); done`,
    );
    return said.split("\n").map(Number);
  };
  await expect.poll(async () => (await counts()).every((n) => n > 0), { timeout: 30_000 }).toBe(true);
  const pids = await lab.exec(sandboxId, "sh", "-c", "pgrep -c 'node|python3'");
  const files = { id: sandboxId, dir: join(lab.artifacts.pool.dir, "machines", sandboxId), diskImage: "" };
  for (let i = 0; i < FREEZES; i += 1) {
    await lab.driver.freeze(files, true);
    await lab.driver.freeze(files, false);
    if (i % 2 === 1) await sleep(i % 5);
  }
  const before = await counts();
  await expect
    .poll(async () => (await counts()).every((n, i) => n > (before[i] ?? 0)), { timeout: 30_000 })
    .toBe(true);
  expect(await lab.exec(sandboxId, "sh", "-c", "pgrep -c 'node|python3'")).toBe(pids);
});

/** Writes a growing number to one place, then to the other, and so on: by system calls, and into pages of a mapped file. */
const pairs = `
import mmap, os, struct, threading
files = [os.open("/root/" + name, os.O_RDWR | os.O_CREAT) for name in ("first", "second")]
mapped = os.open("/root/mapped", os.O_RDWR | os.O_CREAT)
os.ftruncate(mapped, 8192)
pages = mmap.mmap(mapped, 8192)
n = 0
while True:
    n += 1
    bytes = struct.pack("<q", n)
    pages[0:8] = bytes
    for fd in files: os.pwrite(fd, bytes, 0)
    pages[4096:4104] = bytes
`;

it("a checkpoint is of one instant, for programs that write into a mapped file too", async () => {
  const { sandboxId } = await lab.create();
  await lab.exec(sandboxId, "sh", "-c", `python3 -c '${pairs}' > /dev/null 2>&1 &`);
  const numbers = async (): Promise<number[]> =>
    (
      await lab.exec(
        sandboxId,
        "sh",
        "-c",
        "cd /root; od -An -td8 -w8 first; od -An -td8 -w8 second; od -An -td8 -j0 -N8 mapped; od -An -td8 -j4096 -N8 mapped",
      )
    )
      .split("\n")
      .map(Number);
  await expect
    .poll(
      () =>
        numbers().then(
          ([n = 0]) => n,
          () => 0,
        ),
      { timeout: 30_000 },
    )
    .toBeGreaterThan(100);
  const ids: string[] = [];
  for (let round = 0; round < 8; round += 1) {
    const { status, body } = await lab.checkpoint(sandboxId, "POST", "/v1/checkpoint", {});
    expect(status).toBe(200);
    ids.push(String(body["checkpoint_id"]));
  }
  for (const checkpoint_id of ids) {
    expect((await lab.checkpoint(sandboxId, "POST", "/v1/restore", { checkpoint_id })).status).toBe(200);
    const [first = 0, second = 0, before = 0, after = 0] = await numbers();
    // In the order in which they are written, at most one ahead of the next.
    expect(
      [before - first, first - second, second - after, before - after].every((n) => n === 0 || n === 1),
    ).toBe(true);
  }
});
