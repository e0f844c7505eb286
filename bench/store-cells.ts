/** The store over HTTPS with auth, against a no-op on the same route, the disk's own flush, and a bare database in the same sandbox. */
import type { Lab } from "./lab.ts";
import type { Cell } from "./runner.ts";
import { rawClient } from "./sandbox-cells.ts";

/** Median in ms of 20 writes of a page with fdatasync, on the sandbox's disk. */
const bareFlush = `import os,time
f=os.open('/root/.bench-sync',os.O_CREAT|os.O_RDWR); t=[]
for i in range(20):
    a=time.perf_counter(); os.pwrite(f,os.urandom(4096),0); os.fdatasync(f); t.append(time.perf_counter()-a)
print(sorted(t)[10]*1000)`;

/** Medians in ms of durable sets and of gets: SQLite as the store has it (WAL, exclusive, synchronous), without a service around. */
const bareDatabase = `import sqlite3,time
d=sqlite3.connect('/root/.bench.db',isolation_level=None)
d.execute('pragma locking_mode=exclusive'); d.execute('pragma journal_mode=wal'); d.execute('pragma synchronous=full')
d.execute('create table if not exists kv(k text primary key, v text) without rowid')
s=[]; g=[]
for i in range(20):
    a=time.perf_counter(); d.execute('insert or replace into kv values(?,?)',('bench','{"a":%d}'%i)); s.append(time.perf_counter()-a)
    a=time.perf_counter(); r=d.execute('select v from kv where k=?',('bench',)).fetchone()[0]; g.append(time.perf_counter()-a)
    assert r=='{"a":%d}'%i
print(sorted(s)[10]*1000,sorted(g)[10]*1000)`;

export async function storeCell(lab: Lab, samples: number): Promise<{ cell: Cell; close(): Promise<void> }> {
  const sandbox = await lab.cloche.create({ name: "bench-store" });
  const raw = await rawClient(lab, sandbox);
  const ask = async (method: string, path: string, wanted: number, body?: string): Promise<string> => {
    const answer = await raw.send(method, path, body);
    if (answer.status !== wanted) throw new Error(`${method} ${path}: ${answer.status}`);
    return answer.body.toString();
  };
  const python = async (script: string): Promise<number[]> => {
    const { stdout, stderr, ok } = await sandbox.exec(["python3", "-c", script]);
    if (!ok) throw new Error(stderr);
    return stdout.trim().split(" ").map(Number);
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
  const few = Math.min(samples, 20);
  const cell: Cell = {
    name: "store",
    samples,
    arms: [
      { name: "authenticated no-op", run: noop },
      {
        name: "Cloche get",
        run: async () => {
          const { value } = JSON.parse(await ask("GET", "/v1/store/bench", 200)) as { value: { a: number } };
          if (value.a !== round) throw new Error("a get answered an older value");
        },
      },
      { name: "Cloche set, durable", run: set },
      {
        name: "no-op + one fdatasync in the sandbox",
        samples: few,
        run: async () => ((await python(bareFlush))[0] ?? Number.NaN) + (await noop()),
      },
      {
        name: "bare SQLite set in the sandbox",
        samples: few,
        run: async () => (await python(bareDatabase))[0],
      },
      {
        name: "bare SQLite get in the sandbox",
        samples: few,
        run: async () => (await python(bareDatabase))[1],
      },
    ],
    targets: [
      { arm: "Cloche get", against: "authenticated no-op", atMost: 1.5, from: "issue 3" },
      {
        arm: "Cloche set, durable",
        against: "no-op + one fdatasync in the sandbox",
        atMost: 1.5,
        from: "issue 3",
      },
    ],
  };
  const close = async (): Promise<void> => {
    raw.close();
    await sandbox.delete();
  };
  return { cell, close };
}
