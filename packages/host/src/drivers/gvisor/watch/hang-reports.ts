/**
 * Writes reports of sandboxes that hang, so that an operator can find the cause: the stacks of the sentry, if it still answers, and of its
 * threads, as the kernel sees them. Size and number of the files are bounded; only the operator can read them. They have no data of
 * users, but may name users' programs.
 */
import { mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { type Log, systemClock } from "@cloche/base";
import type { Unit } from "../unit.ts";

const reportsMax = 20;
const reportBytesMax = 1024 * 1024;
const threadsMax = 500;
/** A sentry that is stopped never answers. */
const stacksMs = 10_000;

/** Writes a report and logs its path. Never throws: the machine is ended in any case. */
export async function keepStacks(
  into: { hangsDir: string; log: Log },
  unit: Unit,
  id: string,
): Promise<void> {
  try {
    const report = await reportHang(into.hangsDir, unit, id, systemClock.nowMs());
    into.log.warn({ sandbox_id: id, report }, "stacks of a machine that hangs");
  } catch (error) {
    into.log.warn({ err: error, sandbox_id: id }, "the stacks of a machine that hangs could not be kept");
  }
}

async function reportHang(dir: string, unit: Unit, id: string, nowMs: number): Promise<string> {
  await mkdir(dir, { recursive: true, mode: 0o700 });
  const at = new Date(nowMs).toISOString();
  const path = join(dir, `${at.replaceAll(":", "-")}-${id}.txt`);
  const head = `sandbox ${id}, unit ${unit.record.name}, ${at}`;
  const parts = [head, await threadsOf(unit.record.sandbox?.pid), await sentryStacks(unit)];
  await writeFile(path, parts.join("\n\n").slice(0, reportBytesMax), { mode: 0o600 });
  await dropOldest(dir);
  return path;
}

async function sentryStacks(unit: Unit): Promise<string> {
  const failure = await unit.stacks(stacksMs).then(
    (output) => ({ output }),
    (error: unknown) => ({ output: "", error }),
  );
  if ("error" in failure) return `runsc debug --stacks: ${String(failure.error)}`;
  return `runsc debug --stacks:\n${failure.output}`;
}

async function threadsOf(pid: number | undefined): Promise<string> {
  const tasks = `/proc/${pid}/task`;
  const ids = (await readdir(tasks).catch(() => [])).slice(0, threadsMax);
  const threads = await Promise.all(ids.map((id) => thread(join(tasks, id))));
  return [`threads of the sentry, process ${pid}:`, ...threads].join("\n");
}

async function thread(dir: string): Promise<string> {
  const read = async (name: string): Promise<string> =>
    (await readFile(join(dir, name), "utf8").catch(() => "")).trim();
  const status = await read("status");
  const field = (name: string): string => new RegExp(`^${name}:\\s*(.*)$`, "m").exec(status)?.[1] ?? "?";
  const [wchan, syscall, stack] = await Promise.all([read("wchan"), read("syscall"), read("stack")]);
  const lines = stack === "" ? [] : stack.split("\n").map((line) => `    ${line}`);
  return [`${field("Pid")} ${field("Name")} ${field("State")} in ${wchan}, call ${syscall}`, ...lines].join(
    "\n",
  );
}

/** Names begin with the time, so they sort by age. */
async function dropOldest(dir: string): Promise<void> {
  const names = (await readdir(dir)).filter((name) => name.endsWith(".txt")).toSorted();
  for (const name of names.slice(0, -reportsMax)) await rm(join(dir, name), { force: true });
}
