// What tests of virtual machines do with the shared service besides tests/fixtures/client.ts: forks and states, with the
// patience that emulation asks for.
import { expect } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { type Client, eventually } from "../fixtures/client.ts";

export interface SandboxAnswer {
  id: string;
  state: string;
  domain: string;
  runtime: string;
  error_message: string;
}
interface Made {
  sandbox: SandboxAnswer;
  data_plane_token: string;
}

const PATIENCE_MS = 240_000;

export const sandboxOf = async (client: Client, id: string): Promise<SandboxAnswer> =>
  (await client.gateway<{ sandbox: SandboxAnswer }>("GetSandbox", { id })).sandbox;

/** Waits for a state that the sandbox is on its way to. */
export async function reaches(client: Client, id: string, state: string): Promise<SandboxAnswer> {
  const seen = await eventually(
    () => sandboxOf(client, id),
    (sandbox) => sandbox.state === state || sandbox.state === "SANDBOX_STATE_ERROR",
    PATIENCE_MS,
  );
  expect(seen, JSON.stringify(seen)).toMatchObject({ state });
  return seen;
}

export async function make(
  client: Client,
  method: "CreateSandbox" | "ForkSandbox",
  fields: Record<string, unknown>,
): Promise<TestSandbox> {
  const made = await client.gateway<Made>(method, fields);
  client.session.adopt(made.sandbox.id);
  const { id, domain } = await reaches(client, made.sandbox.id, "SANDBOX_STATE_RUNNING");
  return { id, domain, token: made.data_plane_token };
}

export const fork = (client: Client, source: TestSandbox): Promise<TestSandbox> =>
  make(client, "ForkSandbox", { source_sandbox_id: source.id });

export async function suspend(client: Client, { id }: TestSandbox): Promise<void> {
  await client.gateway("SuspendSandbox", { id });
  await reaches(client, id, "SANDBOX_STATE_SUSPENDED");
}

export async function resume(client: Client, { id }: TestSandbox): Promise<SandboxAnswer> {
  await client.gateway("ResumeSandbox", { id });
  return reaches(client, id, "SANDBOX_STATE_RUNNING");
}

/** A number that a living process counts up, and a word that only its memory knows. */
export interface Count {
  readonly count: number;
  readonly word: string;
}

const COUNTER =
  "word=$(head -c 8 /dev/urandom | od -An -tx1 | tr -d ' \\n'); i=0; " +
  "while :; do i=$((i+1)); echo $i $word > /root/count.new; mv /root/count.new /root/count; sleep 0.1; done";

export async function startCounter(client: Client, sandbox: TestSandbox): Promise<Count> {
  await client.shell(sandbox, `(${COUNTER}) > /dev/null 2>&1 &`);
  return countIn(client, sandbox);
}

export async function countIn(client: Client, sandbox: TestSandbox): Promise<Count> {
  const { stdout } = await eventually(
    () => client.exec(sandbox, ["cat", "/root/count"]),
    (seen) => seen.ok,
    PATIENCE_MS,
  );
  const [count = "", word = ""] = stdout.trim().split(" ");
  return { count: Number(count), word };
}

/** The same process goes on from the number that it had. */
export async function goesOn(client: Client, sandbox: TestSandbox, from: Count): Promise<Count> {
  const seen = await eventually(
    () => countIn(client, sandbox),
    ({ count }) => count > from.count,
    PATIENCE_MS,
  );
  expect(seen.word).toBe(from.word);
  expect(seen.count).toBeGreaterThan(from.count);
  return seen;
}
