// kill -9 of the agent in the middle of writes, again and again: no answered write is lost, no batch is applied by half.
// The seed is printed; CLOCHE_SEED=<seed> runs the same choices again.
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, it } from "vitest";

const rounds = 8;
const writers = 6;
const batchKeys = 20;

/** What one writer knows of its own key: the last counter it was answered, and the last it sent. */
interface Written {
  answered: number;
  sent: number;
}

it("loses no answered write and halves no batch under kill -9", async () => {
  const seed = Number(process.env["CLOCHE_SEED"] ?? Date.now() % 1_000_000);
  console.log(`store kill test: CLOCHE_SEED=${seed}`);
  const random = mulberry32(seed);
  const disk = mkdtempSync(join(tmpdir(), "cloche-kill-"));
  const keys = new Map<string, Written>();
  const batches = new Map<number, { answered: boolean }>();
  const history: number[] = [];
  try {
    for (let round = 0; round < rounds; round += 1) {
      const { child, call } = await startStore(disk);
      await verify(call, keys, batches);
      const stop = { now: false };
      const working = Array.from({ length: writers }, (_, writer) =>
        write(call, `w${writer}`, keys, batches, random, stop),
      );
      const answeredBefore = countAnswered(keys, batches);
      // Killed after a random number of answers, not after a time: a slow machine kills no earlier.
      const until = answeredBefore + Math.floor(random() * 120);
      const broken = Promise.all(working).then(
        () => undefined,
        (error: unknown) => error,
      );
      while (countAnswered(keys, batches) < until && !stop.now) {
        await Promise.race([broken, new Promise((resolve) => setTimeout(resolve, 1))]).then((error) => {
          if (error !== undefined) stop.now = true; // reported by Promise.all below
        });
      }
      child.kill("SIGKILL");
      await once(child, "exit");
      stop.now = true;
      await Promise.all(working);
      history.push(countAnswered(keys, batches) - answeredBefore);
    }
    const { child, call } = await startStore(disk);
    await verify(call, keys, batches);
    child.kill("SIGKILL");
    await once(child, "exit");
  } finally {
    rmSync(disk, { recursive: true, force: true });
  }
  console.log(`answered writes per round: ${history.join(" ")}`);
  expect(history.reduce((sum, count) => sum + count, 0)).toBeGreaterThan(rounds);
}, 300_000);

type Call = (
  method: string,
  path: string,
  body?: unknown,
) => Promise<{ status: number; json: Record<string, unknown> } | undefined>;

async function startStore(disk: string): Promise<{ child: ChildProcess; call: Call }> {
  const program = fileURLToPath(new URL("./store-process.ts", import.meta.url));
  const child = spawn(process.execPath, ["--disable-warning=ExperimentalWarning", program, disk], {
    stdio: ["ignore", "pipe", "inherit"],
    env: { ...process.env, NODE_OPTIONS: "" },
  });
  let text = "";
  for await (const chunk of child.stdout) {
    text += String(chunk);
    if (text.includes("\n")) break;
  }
  const [port = "", token = ""] = text.trim().split(" ");
  return { child, call: caller(Number(port), `Bearer ${token}`) };
}

/** Calls that answer undefined where the agent died before it answered. */
function caller(port: number, authorization: string): Call {
  return async (method, path, body) => {
    try {
      const response = await fetch(`http://127.0.0.1:${port}${path}`, {
        method,
        headers: { authorization },
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      });
      return { status: response.status, json: (await response.json()) as Record<string, unknown> };
    } catch {
      return undefined;
    }
  };
}

async function write(
  call: Call,
  writer: string,
  keys: Map<string, Written>,
  batches: Map<number, { answered: boolean }>,
  random: () => number,
  stop: { now: boolean },
): Promise<void> {
  while (!stop.now) {
    if (random() < 0.3) {
      const number = batches.size;
      const batch = { answered: false };
      batches.set(number, batch);
      const operations = Array.from({ length: batchKeys }, (_, index) => ({
        op: "set",
        key: `batch/${number}/${index}`,
        value: "x".repeat(Math.floor(random() * 3_000)),
      }));
      const answer = await call("POST", "/v1/store/batch", { operations });
      if (answer === undefined) return;
      expect(answer.status).toBe(200);
      batch.answered = true;
    } else {
      const key = `${writer}/${Math.floor(random() * 5)}`;
      const written = keys.get(key) ?? { answered: 0, sent: 0 };
      keys.set(key, written);
      written.sent += 1;
      const counter = written.sent;
      const answer = await call("PUT", `/v1/store/${key}`, {
        value: { counter, padding: "y".repeat(Math.floor(random() * 500)) },
      });
      if (answer === undefined) return;
      expect(answer.status).toBe(200);
      written.answered = counter;
    }
  }
}

async function verify(
  call: Call,
  keys: Map<string, Written>,
  batches: Map<number, { answered: boolean }>,
): Promise<void> {
  for (const [key, written] of keys) {
    const answer = await call("GET", `/v1/store/${key}`);
    const counter = answer?.status === 200 ? (answer.json["value"] as { counter: number }).counter : 0;
    expect(counter, key).toBeGreaterThanOrEqual(written.answered);
    expect(counter, key).toBeLessThanOrEqual(written.sent);
    // A write that was not answered may have been made or not; from here on it is what it is.
    written.answered = counter;
  }
  const found = new Map<number, number>();
  for (let cursor = "", more = true; more; ) {
    const page = await call("GET", `/v1/store?prefix=batch/&limit=10000&cursor=${cursor}`);
    for (const key of (page?.json["keys"] as string[] | undefined) ?? []) {
      const number = Number(key.split("/")[1]);
      found.set(number, (found.get(number) ?? 0) + 1);
    }
    cursor = String(page?.json["cursor"] ?? "");
    more = cursor !== "";
  }
  for (const [number, { answered }] of batches) {
    const count = found.get(number) ?? 0;
    expect([0, batchKeys], `batch ${number}`).toContain(count);
    if (answered) expect(count, `batch ${number}`).toBe(batchKeys);
  }
}

function countAnswered(keys: Map<string, Written>, batches: Map<number, { answered: boolean }>): number {
  let count = 0;
  for (const { answered } of keys.values()) count += answered;
  for (const { answered } of batches.values()) count += answered ? 1 : 0;
  return count;
}

/** A small generator with a seed: the same choices again. */
function mulberry32(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  };
}
