/**
 * Two gateways, a PostgreSQL of its own, simulated hosts that hold machines of records: what the longest turns of the gateways' event
 * loops take, how many creates a second they answer and at what cost, and what get and list take, all of one team. No sandbox runs; needs root, for PostgreSQL.
 *
 *   npm run bench:scale -- [--hosts 1000] [--records 100000] [--seconds 70]
 *
 * Compare runs of different sizes on the same computer: ratios count, not numbers.
 */
import { type ChildProcess, fork } from "node:child_process";
import { once } from "node:events";
import { loadavg } from "node:os";
import { parseArgs } from "node:util";
import { startPostgres } from "../../tests/fixtures/postgres.ts";
import { cpuSeconds, processTrees } from "../process-figures.ts";
import { percentile } from "../statistics.ts";
import { fill, sandboxIdOf } from "./records.ts";

const { values } = parseArgs({
  options: {
    hosts: { type: "string", default: "1000" },
    records: { type: "string", default: "100000" },
    seconds: { type: "string", default: "70" },
  },
});
const [hosts, records, seconds] = [values.hosts, values.records, values.seconds].map(Number) as [
  number,
  number,
  number,
];
const creatorsOfEach = 16;

/** In processor time of the gateway. */
interface Turns {
  maxMs: number;
  p999Ms: number;
  rssMb: number;
}
interface Started {
  process: ChildProcess;
  port: number;
  secret: string;
}

const children: ChildProcess[] = [];
function start(file: string, args: readonly string[]): ChildProcess {
  const child = fork(new URL(file, import.meta.url), args, { execArgv: process.execArgv });
  children.push(child);
  return child;
}
async function said<T>(child: ChildProcess, question?: string): Promise<T> {
  if (question !== undefined) child.send(question);
  const [answer] = (await Promise.race([
    once(child, "message"),
    once(child, "exit").then(() => Promise.reject(new Error("a part of the cluster ended"))),
  ])) as [T];
  return answer;
}
const fixed = (value: number): string => value.toFixed(1);

async function call({ port, secret }: Started, method: string, body: object = {}): Promise<unknown> {
  const answer = await fetch(`http://127.0.0.1:${port}/cloche.public.v1.SandboxService/${method}`, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${secret}` },
    body: JSON.stringify(body),
  });
  const text = await answer.text();
  if (answer.status !== 200) throw new Error(`${method}: ${answer.status} ${text.slice(0, 200)}`);
  return JSON.parse(text);
}

async function timesOf(count: number, body: () => Promise<unknown>): Promise<number[]> {
  const timesMs: number[] = [];
  for (let index = 0; index < count; index += 1) {
    const beganMs = performance.now();
    await body();
    timesMs.push(performance.now() - beganMs);
  }
  return timesMs;
}

async function turns(gateways: readonly Started[], when: string): Promise<void> {
  for (const [index, gateway] of gateways.entries()) {
    const { maxMs, p999Ms, rssMb } = await said<Turns>(gateway.process, "turns");
    console.log(
      `${when}, gateway ${index + 1}: longest turn ${fixed(maxMs)} ms, p99.9 ${fixed(p999Ms)} ms; ${fixed(rssMb)} MiB`,
    );
  }
}

/** Processor time, in milliseconds so far, of each part of the creates. */
type Spent = ReadonlyMap<string, number>;

/** `folder`: of PostgreSQL, whose processes name it. */
function spent(gateways: readonly Started[], simulated: ChildProcess, folder: string): Spent {
  const of = (children: readonly ChildProcess[]): number =>
    cpuSeconds(children.flatMap(({ pid }) => pid ?? [])) * 1_000;
  return new Map([
    ["gateways", of(gateways.map((gateway) => gateway.process))],
    ["PostgreSQL", cpuSeconds(processTrees(folder)) * 1_000],
    ["simulated hosts", of([simulated])],
    ["callers", cpuSeconds([process.pid]) * 1_000],
  ]);
}

/** 15 s of creates by callers of both gateways. */
async function measureCreates(gateways: readonly Started[], spentNow: () => Spent): Promise<void> {
  const before = spentNow();
  const untilMs = performance.now() + 15_000;
  const creates: number[] = [];
  const creators = gateways.flatMap((gateway) =>
    Array.from({ length: creatorsOfEach }, async () => {
      while (performance.now() < untilMs)
        creates.push(...(await timesOf(1, () => call(gateway, "CreateSandbox", { memory_mb: 512 }))));
    }),
  );
  await Promise.all(creators);
  const costs = [...spentNow()].map(
    ([part, ms]) => `${part} ${fixed((ms - (before.get(part) ?? 0)) / creates.length)}`,
  );
  await turns(gateways, "creates");
  console.log(
    `creates: ${fixed(creates.length / 15)} a second by ${2 * creatorsOfEach} callers, p50 ${fixed(percentile(creates, 50))} ms`,
  );
  console.log(`milliseconds of processor time of each: ${costs.join(", ")}`);
}

async function run(url: string): Promise<void> {
  console.log(`${hosts} hosts, ${records} records; load ${loadavg().map(fixed).join(" ")}`);
  await fill(url, { hosts, records });
  const simulated = start("hosts.ts", [String(hosts), String(records)]);
  const { port: hostsPort } = await said<{ port: number }>(simulated);
  const gateways: Started[] = [];
  for (const owner of ["a", "b"]) {
    const child = start("gateway.ts", [url, owner, String(hostsPort)]);
    const { startMs, ...started } = await said<{ port: number; secret: string; startMs: number }>(child);
    console.log(`gateway ${owner} started in ${fixed(startMs)} ms`);
    gateways.push({ process: child, ...started });
  }
  await turns(gateways, "start");
  await new Promise((resolve) => setTimeout(resolve, seconds * 1_000));
  await turns(gateways, `${seconds} s of nothing`);

  const [first] = gateways;
  if (first === undefined) throw new Error("there is no gateway");
  const measured: [string, string, (index: number) => object][] = [
    ["get", "GetSandbox", (index) => ({ id: sandboxIdOf((index * 7_919) % records) })],
    ["list, 100", "ListSandboxes", () => ({ page_size: 100 })],
    ["list, 100 by metadata", "ListSandboxes", () => ({ page_size: 100, metadata: { of: "scale" } })],
  ];
  for (const [name, method, bodyOf] of measured) {
    let index = 0;
    const times = await timesOf(200, () => call(first, method, bodyOf((index += 1))));
    console.log(`${name}: p50 ${fixed(percentile(times, 50))} ms, p95 ${fixed(percentile(times, 95))} ms`);
  }

  await turns(gateways, "get and list");
  const folder = new URL(url).searchParams.get("host") ?? "";
  await measureCreates(gateways, () => spent(gateways, simulated, folder));
  for (const { process: child } of gateways) {
    child.send("close");
    await once(child, "exit");
  }
}

const postgres = await startPostgres();
const stopped = new Promise<never>((_resolve, reject) => {
  for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => reject(new Error(signal)));
});
try {
  const running = run(await postgres.newDatabase());
  // Once it is stopped, its parts end under it.
  running.catch(() => undefined);
  await Promise.race([running, stopped]);
} finally {
  for (const child of children) child.kill("SIGKILL");
  await postgres.stop();
}
