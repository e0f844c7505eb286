// kill -9 of the agent in the middle of writes, again and again, on plain Linux.
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, it } from "vitest";
import { choices, seed } from "./seed.ts";
import { type Call, killAfter, StoreWriters } from "./store-writers.ts";

const rounds = 8;

it("loses no answered write and halves no batch when the agent is killed", async () => {
  const random = choices(seed);
  const writers = new StoreWriters(random);
  const disk = mkdtempSync(join(tmpdir(), "cloche-kill-"));
  try {
    for (let round = 0; round <= rounds; round += 1) {
      const { child, call } = await startStore(disk);
      await writers.verify(call);
      await killAfter(writers, call, round === rounds ? 0 : random.below(120), async () => {
        const ended = once(child, "exit");
        child.kill("SIGKILL");
        await ended;
      });
    }
  } finally {
    rmSync(disk, { recursive: true, force: true });
  }
  expect(writers.answered).toBeGreaterThan(rounds);
}, 300_000);

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
