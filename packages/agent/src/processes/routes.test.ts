import { readFileSync, writeFileSync } from "node:fs";
import { request } from "node:http";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { limits } from "@cloche/protocol";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { type AgentFixture, startAgent, token } from "../testing/agent-fixture.ts";

let fixture: AgentFixture;
beforeEach(async () => {
  fixture = await startAgent();
  await fixture.assign();
});
afterEach(() => fixture.close());

async function start(body: Record<string, unknown>): Promise<string> {
  const { status, json, text } = await fixture.call("POST", "/v1/processes", { body: { dir: "/", ...body } });
  expect(status, text).toBe(201);
  return json["process_id"] as string;
}
const info = async (id: string) => (await fixture.call("GET", `/v1/processes/${id}`)).json;
const wait = async (id: string, body: Record<string, unknown> = {}) =>
  fixture.call("POST", `/v1/processes/${id}/wait`, { body });
const list = async () => (await fixture.call("GET", "/v1/processes")).json["processes"] as { kind: string }[];

describe("processes", () => {
  it("are listed oldest first, with what was asked for", async () => {
    const first = await start({ cmd: ["true"], tag: "ä".repeat(128) });
    const second = await start({ cmd: ["sleep", "100"] });
    expect(await list()).toMatchObject([
      { process_id: first, kind: "process", tag: "ä".repeat(128) },
      { process_id: second, status: "running", user: "root", dir: "/", stdin: "none", tty: null },
    ]);
    expect((await fixture.call("DELETE", `/v1/processes/${second}`)).json).toMatchObject({
      status: "exited",
      ended_by: "delete",
      pid: 0,
    });
  });

  it("show no more of a long command than has room", async () => {
    const id = await start({ cmd: ["echo", "x".repeat(10_000), "y"] });
    expect((await info(id))["cmd"]).toEqual(["echo", "x".repeat(limits.processCommandShownBytes - 5)]);
  });

  it("are forgotten, the one that ended longest ago first, and refused only where all of them run", async () => {
    const first = await start({ cmd: ["true"] });
    await wait(first);
    const most = limits.processesPerSandbox;
    for (let made = 1; made < most; made += 50) {
      await Promise.all(Array.from({ length: Math.min(50, most - made) }, () => start({ cmd: ["true"] })));
    }
    expect(await list()).toHaveLength(most);
    const next = await start({ cmd: ["sleep", "100"] });
    expect(await list()).toHaveLength(most);
    expect((await fixture.call("GET", `/v1/processes/${first}`)).status).toBe(404);
    await fixture.call("DELETE", `/v1/processes/${next}`);
  });

  it("take their input at the pace at which they read it", async () => {
    const id = await start({ cmd: ["sh", "-c", "sleep 0.5; wc -c"], stdin: "open" });
    const sent = fixture.call("POST", `/v1/processes/${id}/stdin`, { raw: Buffer.alloc(5_000_000) });
    const done = sent.then(() => true);
    expect(await Promise.race([done, sleep(200, false)])).toBe(false);
    expect((await sent).json).toEqual({ ok: true, bytes: 5_000_000 });
    await fixture.call("DELETE", `/v1/processes/${id}/stdin`);
    expect((await wait(id)).json).toMatchObject({ exit_code: 0, stdin: "closed" });
    expect((await fixture.call("GET", `/v1/processes/${id}/output`)).text.trim()).toBe("5000000");
  });

  it("that end while they are written to say so", async () => {
    const id = await start({ cmd: ["sleep", "0.3"], stdin: "open" });
    const sent = await fixture.call("POST", `/v1/processes/${id}/stdin`, { raw: Buffer.alloc(20_000_000) });
    expect(sent).toMatchObject({ status: 409, json: { code: "failed_precondition" } });
  });

  it("cannot be waited for without end", async () => {
    const id = await start({ cmd: ["sleep", "100"] });
    expect(await wait(id, { timeout_secs: 0 })).toMatchObject({
      status: 408,
      json: { code: "deadline_exceeded" },
    });
    await fixture.call("DELETE", `/v1/processes/${id}`);
  });

  it("answer everybody who waits when they are deleted", async () => {
    const id = await start({ cmd: ["sleep", "100"] });
    const waits = [wait(id), wait(id)];
    await sleep(100);
    const deleted = await Promise.all([0, 1].map(() => fixture.call("DELETE", `/v1/processes/${id}`)));
    expect(deleted.map(({ json }) => json["ended_by"])).toEqual(["delete", "delete"]);
    for (const one of waits) expect((await one).json).toMatchObject({ ended_by: "delete", exit_code: 137 });
  });
});

describe("output", () => {
  const events = async (id: string, query = "", headers = {}) => {
    const answer = await fixture.call("GET", `/v1/processes/${id}/output?${query}`, {
      headers: { accept: "text/event-stream", ...headers },
    });
    return answer.text
      .split("\n\n")
      .filter((text) => text.includes("event: "))
      .map((text) => ({
        id: /^id: (.*)$/m.exec(text)?.[1],
        event: /^event: (.*)$/m.exec(text)?.[1],
        data: JSON.parse(/^data: (.*)$/m.exec(text)?.[1] ?? "") as Record<string, unknown>,
      }));
  };

  it("is told in events from where a reader was", async () => {
    const id = await start({ cmd: ["sh", "-c", "printf abc; printf xyz >&2; sleep 0.2; printf def"] });
    const seen = await events(id, "follow=true");
    const text = (stream: string) =>
      seen
        .filter(({ event }) => event === stream)
        .map(({ data }) => Buffer.from(data["data"] as string, "base64").toString())
        .join("");
    expect([text("stdout"), text("stderr")]).toEqual(["abcdef", "xyz"]);
    expect(seen.at(-1)).toMatchObject({
      event: "exit",
      data: { process_id: id, exit_code: 0, stdout_bytes: 6 },
    });
    const first = seen.find(({ event }) => event === "stdout");
    const rest = await events(id, "", { "last-event-id": first?.id });
    expect(rest.filter(({ event }) => event === "stdout")).toMatchObject([{ data: { offset: 3 } }]);
    expect(await events(id, "after_stdout=5&after_stderr=2")).toMatchObject([
      { event: "stdout", data: { offset: 5 } },
      { event: "stderr", data: { offset: 2 } },
      { event: "exit" },
    ]);
    expect(await events(id, "stream=stderr&after=1")).toMatchObject([
      { data: { offset: 1 } },
      { event: "exit" },
    ]);
  });

  it("has at most so many readers", async () => {
    const id = await start({ cmd: ["sleep", "100"] });
    const path = `/v1/processes/${id}/output?follow=true`;
    const open = await Promise.all(
      Array.from({ length: limits.processReaders }, async () => {
        const { promise, resolve, reject } = Promise.withResolvers<{ destroy(): void }>();
        const sent = request(
          { port: fixture.port, path, headers: { authorization: `Bearer ${token()}` }, agent: false },
          resolve,
        );
        sent.on("error", reject);
        sent.end();
        return promise;
      }),
    );
    expect(await fixture.call("GET", path)).toMatchObject({
      status: 429,
      json: { code: "resource_exhausted" },
    });
    open[0]?.destroy();
    await sleep(100);
    const answer = fixture.call("GET", path);
    await sleep(100);
    await fixture.call("DELETE", `/v1/processes/${id}`);
    expect((await answer).status).toBe(200);
    for (const one of open) one.destroy();
  });

  it("goes on without a reader that does not read, who is then cut off rather than told it is whole", async () => {
    const id = await start({ cmd: ["sh", "-c", "head -c 30000000 /dev/zero"] });
    const { promise, resolve, reject } = Promise.withResolvers<number>();
    const sent = request(
      {
        port: fixture.port,
        path: `/v1/processes/${id}/output?follow=true`,
        headers: { authorization: `Bearer ${token()}` },
        agent: false,
      },
      (response) => {
        let bytes = 0;
        response.on("error", () => resolve(bytes));
        response.on("end", () => reject(new Error("it was told that this is all")));
        void wait(id, { timeout_secs: 20 }).then(({ json }) => {
          expect(json).toMatchObject({ status: "exited", stdout_bytes: 30_000_000 });
          response.on("data", (chunk: Buffer) => (bytes += chunk.length));
        });
      },
    );
    sent.on("error", reject);
    sent.end();
    expect(await promise).toBeLessThan(30_000_000);
  });
});

describe("an exec", () => {
  it("is listed while it runs, and not after its answer", async () => {
    const exec = fixture.call("POST", "/v1/exec", { body: { cmd: ["sleep", "0.5"], dir: "/" } });
    await sleep(200);
    expect(await list()).toMatchObject([{ kind: "exec", cmd: ["sleep", "0.5"], status: "running" }]);
    expect((await exec).status).toBe(200);
    expect(await list()).toEqual([]);
  });

  it("whose connection is lost is found again with its output and exit code", async () => {
    const { promise, resolve } = Promise.withResolvers<void>();
    const sent = request({
      port: fixture.port,
      method: "POST",
      path: "/v1/exec",
      headers: { authorization: `Bearer ${token()}` },
      agent: false,
    });
    sent.on("error", () => resolve());
    sent.end(JSON.stringify({ cmd: ["sh", "-c", "echo before; sleep 0.5; echo after; exit 9"], dir: "/" }));
    await sleep(200);
    sent.destroy();
    await promise;
    const [found] = (await list()) as unknown as { process_id: string }[];
    const id = found?.process_id ?? "";
    expect((await wait(id)).json).toMatchObject({ kind: "exec", exit_code: 9, ended_by: "exit" });
    await sleep(50);
    expect((await fixture.call("GET", `/v1/processes/${id}/output`)).text).toBe("before\nafter\n");
    expect((await fixture.call("DELETE", `/v1/processes/${id}`)).status).toBe(200);
  });

  it("that is answered while a snapshot is taken is remembered by the machine that is made of it alone", async () => {
    const answered = async (): Promise<unknown[]> => {
      await fixture.call("POST", "/v1/exec", { body: { cmd: ["echo", "x"], dir: "/" } });
      return list();
    };
    await fixture.control("PrepareSnapshot");
    expect(await answered()).toEqual([]);
    // As a clone, or a machine that is resumed, is assigned anew.
    await fixture.assign({}, "control-secret");
    expect(await list()).toMatchObject([{ kind: "exec", cmd: ["echo", "x"], exit_code: 0 }]);
    expect(await answered()).toHaveLength(1);
  });
});

describe("a restore", () => {
  it("ends what runs and keeps what is known of it", async () => {
    const id = await start({ cmd: ["sh", "-c", "echo begun; sleep 100"], keep_seconds: 60 });
    const done = await start({ cmd: ["echo", "done"] });
    await wait(done);
    const exec = fixture.call("POST", "/v1/exec", { body: { cmd: ["sleep", "100"], dir: "/" } });
    await sleep(200);
    expect((await fixture.control("DetachDisk")).status).toBe(200);
    expect(await exec).toMatchObject({ status: 503, json: { code: "unavailable" } });
    expect((await fixture.control("AttachDisk")).status).toBe(200);
    expect(await info(id)).toMatchObject({
      status: "exited",
      ended_by: "restore",
      exit_code: 137,
      signal: "SIGKILL",
    });
    expect(await info(done)).toMatchObject({ ended_by: "exit", exit_code: 0 });
    expect((await fixture.call("GET", `/v1/processes/${id}/output`)).text).toBe("begun\n");
    expect(await list()).toMatchObject([
      { kind: "process" },
      { kind: "process" },
      { kind: "exec", ended_by: "restore" },
    ]);
  });
});

describe("a machine that is started anew", () => {
  /** Another agent on the same disk, as after the end of its machine. */
  const next = async (id?: string): Promise<AgentFixture> => {
    const fresh = await startAgent({ diskPath: fixture.diskPath });
    await fresh.assign(id === undefined ? {} : { sandboxId: id });
    return fresh;
  };

  it("knows what it had, and that it is gone", async () => {
    const ended = await start({ cmd: ["sh", "-c", "echo x; exit 3"], tag: "a" });
    await wait(ended);
    const running = await start({ cmd: ["sleep", "100"], tty: { cols: 7, rows: 8 } });
    await fixture.call("DELETE", `/v1/processes/${await start({ cmd: ["true"] })}`);
    await sleep(500);
    const fresh = await next();
    try {
      const { json } = await fresh.call("GET", "/v1/processes");
      expect(json["processes"]).toMatchObject([
        { process_id: ended, tag: "a", status: "exited", exit_code: 3, ended_by: "exit", stdout_bytes: 2 },
        {
          process_id: running,
          status: "exited",
          exit_code: 137,
          signal: "SIGKILL",
          ended_by: "machine_restart",
          pid: 0,
          tty: { cols: 7, rows: 8 },
          stdin: "closed",
        },
      ]);
      const output = await fresh.call("GET", `/v1/processes/${ended}/output`);
      expect(output).toMatchObject({ status: 200, text: "", headers: { "x-output-start": "2" } });
      expect(
        (await fresh.call("POST", `/v1/processes/${running}/signal`, { body: { signal: 9 } })).status,
      ).toBe(409);
      expect((await fresh.call("DELETE", `/v1/processes/${running}`)).json).toMatchObject({
        ended_by: "machine_restart",
      });
      const again = await next();
      const { json: left } = await again.call("GET", "/v1/processes?status=exited");
      expect(left["processes"]).toHaveLength(2);
      await again.close();
    } finally {
      await fresh.close();
    }
  });

  it("knows nothing of another sandbox, of whose disk it has a copy", async () => {
    await start({ cmd: ["true"] });
    await sleep(500);
    const other = await startAgent({ diskPath: fixture.diskPath });
    await other.assign({ sandboxId: "sbx-bbbbbbbbbbbbbbbbbbbb" });
    const { json } = await other.call("GET", "/v1/processes", {
      authorization: `Bearer ${token({ aud: "sbx-bbbbbbbbbbbbbbbbbbbb", sandbox_id: "sbx-bbbbbbbbbbbbbbbbbbbb" })}`,
    });
    expect(json["processes"]).toEqual([]);
    await other.close();
  });

  it("of which a restore brought back an older disk keeps to what it knows", async () => {
    const id = await start({ cmd: ["sleep", "100"] });
    await sleep(500);
    const file = join(fixture.diskPath, "cloche", "processes.json");
    const older = readFileSync(file, "utf8");
    await fixture.call("DELETE", `/v1/processes/${id}`);
    await fixture.control("DetachDisk");
    writeFileSync(file, older);
    await fixture.control("AttachDisk");
    expect(await list()).toEqual([]);
    await sleep(500);
    expect(JSON.parse(readFileSync(file, "utf8"))).toMatchObject({ processes: [] });
  });
});
