// Processes and terminals as a user lives them, the same on both runtimes: cut off and attached again, suspended and resumed,
// forked while they count, restored.
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import type { AttachClient } from "../../packages/agent/src/testing/attach-client.ts";
import type { TestSandbox } from "../conformance/session.ts";
import { type Client, eventually } from "../fixtures/client.ts";
import { attachTo } from "../fixtures/terminal.ts";

export interface ProcessRecord {
  process_id: string;
  kind: string;
  status: string;
  exit_code: number | null;
  ended_by: string | null;
  stdout_bytes: number;
  pid: number;
  [field: string]: unknown;
}
interface Made {
  sandbox: { id: string; state: string; domain: string };
  data_plane_token: string;
}

/** What a test does with the processes of a sandbox, in few words. */
export class ProcessClient {
  readonly #client: Client;
  readonly #sandbox: TestSandbox;

  constructor(client: Client, sandbox: TestSandbox) {
    this.#client = client;
    this.#sandbox = sandbox;
  }

  async start(body: Record<string, unknown>): Promise<string> {
    const answer = await this.#client.call(this.#sandbox, "POST", "/v1/processes", { json: body });
    expect(answer.status, answer.body.toString()).toBe(201);
    return (JSON.parse(answer.body.toString()) as ProcessRecord).process_id;
  }

  async #json<T>(method: string, path: string, json?: unknown): Promise<T> {
    const answer = await this.#client.call(this.#sandbox, method, path, json === undefined ? {} : { json });
    expect(answer.status, answer.body.toString()).toBe(200);
    return JSON.parse(answer.body.toString()) as T;
  }

  get(id: string): Promise<ProcessRecord> {
    return this.#json("GET", `/v1/processes/${id}`);
  }

  async list(): Promise<ProcessRecord[]> {
    return (await this.#json<{ processes: ProcessRecord[] }>("GET", "/v1/processes")).processes;
  }

  wait(id: string): Promise<ProcessRecord> {
    return this.#json("POST", `/v1/processes/${id}/wait`, { timeout_secs: 120 });
  }

  delete(id: string): Promise<ProcessRecord> {
    return this.#json("DELETE", `/v1/processes/${id}`);
  }

  async output(id: string, query = ""): Promise<string> {
    const answer = await this.#client.call(this.#sandbox, "GET", `/v1/processes/${id}/output${query}`);
    expect(answer.status).toBe(200);
    return answer.body.toString("latin1");
  }

  attach(id: string, query = ""): Promise<AttachClient> {
    return attachTo(this.#client.session.target, this.#sandbox, id, query);
  }
}

/** Lines of `output` that are `1`, `2`, `3`, … without a hole or a repetition; how many. */
export function counted(output: string): number {
  const lines = output.split("\n").slice(0, -1);
  lines.forEach((line, index) => expect(line).toBe(String(index + 1)));
  return lines.length;
}

/** Counts without starting a program for each number: emulated machines take a quarter of a second for one. */
export const counting = (to: number): string[] => [
  "python3",
  "-uc",
  `import sys, time\nfor i in range(1, ${to} + 1):\n  print(i)\n  time.sleep(0.01)\nsys.exit(7)`,
];

/** The tests, for whoever names the service they run against. */
export function processesAsLived(client: Client): void {
  let sandbox: TestSandbox;
  let processes: ProcessClient;
  beforeAll(async () => {
    sandbox = await client.create({ name: "processes" });
    processes = new ProcessClient(client, sandbox);
  });
  afterAll(() => client.session.discard(sandbox.id));

  const stateReached = (id: string, state: string) =>
    eventually(
      async () => (await client.gateway<Made>("GetSandbox", { id })).sandbox,
      (seen) => seen.state === state,
      240_000,
    ).then((seen) => expect(seen.state).toBe(state));
  const suspendAndResume = async (between: () => Promise<void> = async () => undefined): Promise<void> => {
    await client.gateway("SuspendSandbox", { id: sandbox.id });
    await stateReached(sandbox.id, "SANDBOX_STATE_SUSPENDED");
    await between();
    await client.gateway("ResumeSandbox", { id: sandbox.id });
    await stateReached(sandbox.id, "SANDBOX_STATE_RUNNING");
  };

  describe("a terminal", () => {
    const shell = async (): Promise<{ id: string; terminal: AttachClient }> => {
      const cmd = ["bash", "--norc", "--noprofile", "-i"];
      const env = { PS1: "$ ", LESS: "", PAGER: "less" };
      const id = await processes.start({ cmd, env, tty: { cols: 100, rows: 30 } });
      const terminal = await processes.attach(id);
      onTestFinished(async () => {
        terminal.cut();
        await processes.delete(id).catch(() => undefined);
      });
      await terminal.until("a prompt", () => terminal.text(1).includes("$ "));
      return { id, terminal };
    };
    const seen = (terminal: AttachClient, what: string | RegExp) =>
      terminal.until(String(what), () =>
        typeof what === "string" ? terminal.text(1).includes(what) : what.test(terminal.text(1)),
      );

    test("is one: vi, less, top and python3 run on it, and UTF-8 goes through", async () => {
      const { terminal } = await shell();
      /** Types a line at the prompt, and answers when what it shows is seen. */
      const run = async (line: string, shown: string | RegExp): Promise<void> => {
        await terminal.until("a prompt", () => terminal.text(1).endsWith("$ "));
        terminal.send(0, `${line}\n`);
        await seen(terminal, shown);
      };
      await run("stty size; echo Grüße 日本", /30 100\r\n/);
      await seen(terminal, "\nGrüße 日本");
      await run("vi /root/note.txt", "note.txt");
      await seen(terminal, "~");
      await sleep(500); // it throws away what was typed before
      terminal.send(0, "ihello from vi\u001b");
      await sleep(500);
      terminal.send(0, ":wq\r");
      await run("cat /root/note.txt", "\rhello from vi\r\n");
      await run("seq 500 > /root/lines; less /root/lines", /\b29\r\n/);
      terminal.send(0, "G");
      await seen(terminal, /\b500\r\n/);
      terminal.send(0, "q");
      await run("top -d 1", "load average");
      await seen(terminal, "COMMAND");
      await sleep(500);
      terminal.send(0, "q");
      await run("python3 -q", ">>> ");
      terminal.send(0, "print(6 * 7, __import__('os').get_terminal_size())\n");
      await seen(terminal, "42 os.terminal_size(columns=100, lines=30)");
      terminal.send(0, "exit()\n");
      await terminal.until("a prompt", () => terminal.text(1).endsWith("$ "));
      terminal.send(0, "exit 3\n");
      expect(await terminal.closed).toMatchObject({ code: 1000 });
      expect(terminal.status.at(-1)).toMatchObject({ exit_code: 3, ended_by: "exit" });
    });

    test("goes on when its client is cut off, and another attaches from where that one was", async () => {
      const { id, terminal } = await shell();
      const count = "[(print(f'line-{i}'), time.sleep(0.01)) for i in range(1, 201)]";
      terminal.send(0, `python3 -uc "import time; ${count}"; echo all-done\n`);
      await seen(terminal, "line-20\r");
      terminal.cut();
      const had = terminal.bytes(1).length;
      await sleep(300);
      const again = await processes.attach(id, `?after_stdout=${had}`);
      await again.until("the end", () => again.text(1).includes("\nall-done"));
      const all = terminal.text(1) + again.text(1);
      const lines = [...all.matchAll(/line-(\d+)\r\n/g)].map(([, number]) => Number(number));
      expect(lines).toEqual(Array.from({ length: 200 }, (_, n) => n + 1));
      again.send(0, "exit\n");
      await again.closed;
    });

    test("is that of a shell that is suspended and resumed with its sandbox", async () => {
      const { id, terminal } = await shell();
      terminal.send(0, "kept=yes\n");
      await sleep(300);
      await suspendAndResume();
      expect(await terminal.closed).toBeUndefined();
      const again = await processes.attach(id);
      again.send(0, "echo it-is-$kept\n");
      await again.until("its memory", () => again.text(1).includes("it-is-yes"));
      again.resize(77, 22);
      again.send(0, "stty size\n");
      await again.until("the size", () => /22 77\r\n/.test(again.text(1)));
      again.send(0, "exit\n");
      await again.closed;
    });

    test("has signals for the job in its foreground", async () => {
      const { id, terminal } = await shell();
      terminal.send(0, "sleep 5151; echo ended-with-$?\n");
      await eventually(
        () => client.exec(sandbox, ["pgrep", "-fx", "sleep 5151"]),
        ({ ok }) => ok,
      );
      const signal = { json: { signal: "SIGTERM" } };
      expect((await client.call(sandbox, "POST", `/v1/processes/${id}/signal`, signal)).status).toBe(200);
      await seen(terminal, "ended-with-143");
    });
  });

  test("a process goes on through suspend and resume, and not a byte of it is lost", async () => {
    const id = await processes.start({ cmd: counting(400) });
    await sleep(500);
    await suspendAndResume();
    expect((await processes.get(id)).status).toBe("running");
    expect(await processes.wait(id)).toMatchObject({ exit_code: 7, ended_by: "exit" });
    expect(counted(await processes.output(id))).toBe(400);
  });

  test("a live fork has its own continuation of it, under the same id, not a byte lost or twice", async () => {
    const id = await processes.start({ cmd: counting(600) });
    await sleep(1_000);
    const made = await client.gateway<Made>("ForkSandbox", { source_sandbox_id: sandbox.id });
    client.session.adopt(made.sandbox.id);
    onTestFinished(() => client.session.discard(made.sandbox.id));
    await stateReached(made.sandbox.id, "SANDBOX_STATE_RUNNING");
    const { domain } = (await client.gateway<Made>("GetSandbox", { id: made.sandbox.id })).sandbox;
    const clone = new ProcessClient(client, { id: made.sandbox.id, domain, token: made.data_plane_token });
    for (const one of [processes, clone]) {
      expect(await one.wait(id)).toMatchObject({ process_id: id, exit_code: 7 });
      expect(counted(await one.output(id))).toBe(600);
    }
    await clone.delete(id);
    expect((await processes.get(id)).exit_code).toBe(7);
  });

  test("an exec whose client is cut off by a suspend is found again, with its output and exit code", async () => {
    const line = "echo before; sleep 2; echo after; exit 9";
    const cut = client.exec(sandbox, ["sh", "-c", line]).catch((error: Error) => error.message);
    await eventually(
      () => processes.list(),
      (list) => list.some(({ kind }) => kind === "exec"),
    );
    await suspendAndResume();
    expect(await cut).toMatch(/503/);
    const [found] = (await processes.list()).filter(({ kind }) => kind === "exec");
    const id = found?.process_id ?? "";
    expect(await processes.wait(id)).toMatchObject({ kind: "exec", exit_code: 9 });
    const kept = await eventually(
      () => processes.output(id),
      (text) => text.includes("after"),
    );
    expect(kept).toBe("before\nafter\n");
    await processes.delete(id);
  });

  test("a restore ends it and says so, and its record and output stay", async () => {
    const created = await client.call(sandbox, "POST", "/v1/checkpoint", { json: {} });
    const { checkpoint_id } = JSON.parse(created.body.toString()) as { checkpoint_id: string };
    const id = await processes.start({
      cmd: ["sh", "-c", "seq 1000; echo waits; sleep 1000"],
      keep_seconds: 600,
    });
    await eventually(
      () => processes.output(id),
      (text) => text.endsWith("waits\n"),
    );
    const follower = processes.output(id, "?follow=true");
    const restored = await client.call(sandbox, "POST", "/v1/restore", { json: { checkpoint_id } });
    expect(restored.status).toBe(200);
    const found = { status: "exited", ended_by: "restore", exit_code: 137, signal: "SIGKILL" };
    expect(await processes.get(id)).toMatchObject(found);
    expect((await processes.output(id)).split("\n")).toHaveLength(1_002);
    expect(await follower.catch(() => "1\ncut")).toMatch(/^1\n/);
    await client.call(sandbox, "DELETE", `/v1/checkpoint/${checkpoint_id}`);
    expect((await client.exec(sandbox, ["echo", "alive"])).stdout).toBe("alive\n");
  });
}
