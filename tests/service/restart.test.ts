// The service ends in every way it can, and comes back: machines live on through SIGTERM and kill -9, a stop suspends them,
// and nothing is left on the machine that should not be.
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, onTestFailed, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { Client, eventually } from "../fixtures/client.ts";
import { emptyInventory, grown, inventory, runFolder } from "../fixtures/inventory.ts";
import { startService, type TestService } from "../fixtures/service.ts";
import { counted, counting, ProcessClient } from "../e2e/processes-as-lived.ts";

let service: TestService;
let client: Client;
let sandbox: TestSandbox;
beforeAll(async () => {
  // Nothing kept ready: what is counted before and after must not depend on how full that was.
  const env = { CLOCHE_WARM_POOL: "0", CLOCHE_DRAIN_SECONDS: "60", CLOCHE_TRACE: "operations" };
  service = await startService({ env });
  client = new Client(service.target());
  sandbox = await client.create({ name: "survivor" });
});
afterAll(async () => {
  await client?.close().catch(() => undefined);
  expect(await service?.destroy()).toEqual([]);
});

const stateOf = async (id: string): Promise<string> =>
  (await client.gateway<{ sandbox: { state: string } }>("GetSandbox", { id })).sandbox.state;

describe.each([
  { how: "SIGTERM", end: () => service.terminate() },
  { how: "kill -9", end: () => service.kill9() },
])("after $how and a start", ({ how, end }) => {
  test("running sandboxes were never interrupted", async () => {
    onTestFailed(() => console.error(service.logTail()));
    const mark = how.replaceAll(/\W/g, "");
    await client.shell(
      sandbox,
      `(for i in $(seq 300); do echo $i >> /root/ticks-${mark}; sleep 0.1; done) > /dev/null 2>&1 &`,
    );
    const pid = await client.shell(sandbox, "echo $PPID; cat /proc/1/stat | cut -d' ' -f22");
    await client.call(sandbox, "PUT", `/v1/store/${mark}`, { json: { value: "before" } });
    // This exec's connection breaks with the service; its command must not.
    const interrupted = client
      .exec(sandbox, ["sh", "-c", `sleep 3; echo finished > /root/finished-${mark}`])
      .catch(() => undefined);
    await eventually(
      () => client.shell(sandbox, "pgrep -fxc 'sleep 3' || true"),
      (count) => Number(count) === 1,
    );
    await end();
    const startedAt = Date.now();
    await service.start();
    await interrupted;

    expect(await stateOf(sandbox.id)).toBe("SANDBOX_STATE_RUNNING");
    const ticks = Number(await client.shell(sandbox, `wc -l < /root/ticks-${mark}`));
    expect(ticks).toBeGreaterThan((Date.now() - startedAt) / 1_000);
    const finished = await eventually(
      () => client.exec(sandbox, ["cat", `/root/finished-${mark}`]),
      ({ ok }) => ok,
    );
    expect(finished.stdout).toBe("finished\n");
    expect(
      (await client.shell(sandbox, "echo $PPID; cat /proc/1/stat | cut -d' ' -f22")).split("\n")[1],
    ).toBe(pid.split("\n")[1]);
    const value = await client.call(sandbox, "GET", `/v1/store/${mark}`);
    expect(JSON.parse(value.body.toString())).toMatchObject({ value: "before" });
  });

  test("processes went on, and an exec whose client was cut off is found with its output", async () => {
    onTestFailed(() => console.error(service.logTail()));
    const processes = new ProcessClient(client, sandbox);
    // The test before has left one that was cut off.
    const before = new Set((await processes.list()).map(({ process_id }) => process_id));
    const id = await processes.start({ cmd: counting(300), tag: how });
    const terminal = await processes.attach(id);
    // On a connection of its own: one that was used before would be replaced, and the command begun again.
    const alone = new Client(service.target());
    const line = "echo before; sleep 3; echo after; exit 9";
    const cut = alone.exec(sandbox, ["sh", "-c", line]).catch(() => undefined);
    const execs = async () =>
      (await processes.list()).filter(({ kind, process_id: id }) => kind === "exec" && !before.has(id));
    await eventually(execs, (list) => list.length === 1);
    await end();
    await terminal.closed;
    const had = terminal.bytes(1).length;
    await service.start();
    const answer = await cut;
    await alone.close();
    expect(await processes.wait(id)).toMatchObject({ exit_code: 7, ended_by: "exit" });
    expect(counted(await processes.output(id))).toBe(300);
    expect(counted(terminal.bytes(1).toString() + (await processes.output(id, `?after=${had}`)))).toBe(300);
    await processes.delete(id);
    // A service that drains has answered; one that was killed has not.
    expect(answer?.exit_code).toBe(how === "SIGTERM" ? 9 : undefined);
    expect(await execs()).toHaveLength(how === "SIGTERM" ? 0 : 1);
    const found = (await execs())[0]?.process_id;
    if (found === undefined) return;
    expect(await processes.wait(found)).toMatchObject({ kind: "exec", exit_code: 9, ended_by: "exit" });
    const kept = await eventually(
      () => processes.output(found),
      (text) => text.includes("after"),
    );
    expect(kept).toBe("before\nafter\n");
    await processes.delete(found);
  });

  test("new sandboxes can be made and deleted", async () => {
    const fresh = await client.create();
    expect((await client.exec(fresh, ["echo", "fresh"])).stdout).toBe("fresh\n");
    await client.session.discard(fresh.id);
  });
});

test("a machine that ends and starts anew says so of its processes", async () => {
  onTestFailed(() => console.error(service.logTail()));
  const own = await client.create();
  const processes = new ProcessClient(client, own);
  const id = await processes.start({ cmd: ["sh", "-c", "echo hi; sleep 1000"], tag: "mine" });
  const slots = join(runFolder(service.tag), "gvisor", "slots");
  const owner = (unit: string): unknown => {
    const file = join(slots, unit, "disk", "cloche", "processes.json");
    return existsSync(file) && (JSON.parse(readFileSync(file, "utf8")) as { sandbox_id: string }).sandbox_id;
  };
  const unit = await eventually(
    () => readdirSync(slots).find((name) => owner(name) === own.id),
    (name) => name !== undefined,
  );
  process.kill(sentryOf(unit ?? ""), "SIGKILL");
  const ended = await eventually(
    () => processes.get(id).catch(() => undefined),
    (record) => record?.status === "exited",
  );
  expect(ended).toMatchObject({ tag: "mine", ended_by: "machine_restart", exit_code: 137, pid: 0 });
  await client.session.discard(own.id);
});

/** The process in which a unit's kernel runs. */
function sentryOf(unit: string): number {
  const words = (pid: string): string[] => {
    try {
      return readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0");
    } catch {
      return [];
    }
  };
  const pid = readdirSync("/proc").find((name) => words(name).includes("boot") && words(name).includes(unit));
  if (pid === undefined) throw new Error(`unit ${unit} has no sentry`);
  return Number(pid);
}

test("a request under way when SIGTERM comes is answered, and its sandbox's own server goes on", async () => {
  await client.shell(
    sandbox,
    "mkdir -p /srv && echo served > /srv/page && cd /srv && (python3 -m http.server 8099 > /dev/null 2>&1 &)",
  );
  const page =
    "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8099/page').read().decode(), end='')";
  const serves = (): Promise<string> =>
    client.exec(sandbox, ["python3", "-c", page]).then(({ stdout }) => stdout);
  expect(await eventually(serves, (text) => text === "served\n")).toBe("served\n");
  const underWay = client.exec(sandbox, ["sh", "-c", "echo > /root/begun; sleep 2; echo answered"]);
  await eventually(
    () => client.exec(sandbox, ["test", "-e", "/root/begun"]),
    ({ ok }) => ok,
  );
  await service.terminate();
  expect((await underWay).stdout).toBe("answered\n");
  await service.start();
  expect(await serves()).toBe("served\n");
});

test("operations tell their steps in the log, under the caller's ids", async () => {
  const traceId = "0af7651916cd43dd8448eb211c80319c";
  const headers = { "x-request-id": "traced-1", traceparent: `00-${traceId}-b7ad6b7169203331-01` };
  const taken = await client.call(sandbox, "POST", "/v1/checkpoint", { json: {}, headers });
  expect(taken.status).toBe(200);
  interface Line {
    msg: string;
    operation: string;
    request_id: string;
    trace_id: string;
    steps: { step: string }[];
  }
  const find = (): Line | undefined =>
    readFileSync(join(service.home, "log", "service.log"), "utf8")
      .split("\n")
      .filter((line) => line.includes('"operation trace"') && line.includes("traced-1"))
      .map((line) => JSON.parse(line) as Line)[0];
  const line = await eventually(
    () => Promise.resolve(find()),
    (found) => found !== undefined,
  );
  expect(line).toMatchObject({ operation: "checkpoint", request_id: "traced-1", trace_id: traceId });
  const steps = line?.steps.map(({ step }) => step);
  expect(steps?.[0]).toBe("queue");
  expect(steps).toContain("agent PrepareCheckpoint");
});

test("a second start of the same home prints the addresses of the first, which serves on", async () => {
  const { pid } = service.status;
  const second = await service.command(["up", "--detach"]);
  expect(second.code).toBe(0);
  expect(second.stdout + second.stderr).toContain(service.status.gateway_url);
  expect((await service.readStatus()).pid).toBe(pid);
  expect((await client.exec(sandbox, ["true"])).ok).toBe(true);
});

test("a sandbox that is created and deleted leaves nothing behind", async () => {
  // One round first, so that what is made once for all is made.
  await client.session.discard((await client.create()).id);
  await client.gateway("ListSandboxes");
  const count = async (): Promise<number> =>
    (await client.gateway<{ sandboxes: [] }>("ListSandboxes")).sandboxes.length;
  await eventually(count, (left) => left === 1);
  const before = inventory(service.home);
  for (let round = 0; round < 5; round += 1) {
    const made = await Promise.all([client.create(), client.create()]);
    await Promise.all(made.map((one) => client.exec(one, ["sh", "-c", "sleep 100 & echo up"])));
    await Promise.all(made.map((one) => client.session.discard(one.id)));
  }
  await eventually(count, (left) => left === 1);
  // Machines kept ready ahead come and go: their number counts, not their names.
  const grownBy = await eventually(
    () => {
      const now = inventory(service.home);
      return (Object.keys(now) as (keyof typeof now)[]).filter(
        (kind) => now[kind].length > before[kind].length,
      );
    },
    (kinds) => kinds.length === 0,
  );
  expect(grownBy, grown(before, inventory(service.home)).join("\n")).toEqual([]);
});

test("after npm stop nothing runs and nothing is mounted, and a start brings all back", async () => {
  onTestFailed(() => console.error(service.logTail()));
  await client.shell(sandbox, "echo kept > /root/kept; (while :; do sleep 1; done) > /dev/null 2>&1 &");
  const stopped = await service.stop();
  expect(stopped.code, stopped.stderr).toBe(0);
  expect(grown(emptyInventory, inventory(service.home))).toEqual([]);
  expect(existsSync(runFolder(service.tag))).toBe(false);
  expect((await service.command(["status", "--json"])).code).not.toBe(0);
  await service.start();
  const state = await eventually(
    () => stateOf(sandbox.id),
    (seen) => seen === "SANDBOX_STATE_RUNNING",
  );
  expect(state).toBe("SANDBOX_STATE_RUNNING");
  expect(await client.shell(sandbox, "cat /root/kept")).toBe("kept\n");
});

test("stop after kill -9 cleans up what the killed service left", async () => {
  await service.kill9();
  const stopped = await service.stop();
  expect(stopped.code, stopped.stderr).toBe(0);
  expect(grown(emptyInventory, inventory(service.home))).toEqual([]);
  expect(existsSync(runFolder(service.tag))).toBe(false);
});

test("tokens end when their lifetime says so, and a fresh one works", async () => {
  service.env = { ...service.env, CLOCHE_TOKEN_LIFETIME_SECONDS: "2" };
  await service.start();
  await eventually(
    () => stateOf(sandbox.id),
    (seen) => seen === "SANDBOX_STATE_RUNNING",
  );
  const issue = (): Promise<{ jwt: string; expires_at_unix: number }> =>
    client.gateway("IssueDataPlaneToken", { sandbox_id: sandbox.id });
  const { jwt, expires_at_unix } = await issue();
  expect(expires_at_unix - Date.now() / 1_000).toBeLessThan(4);
  const status = async (token: string): Promise<number> =>
    (await client.call({ ...sandbox, token }, "POST", "/v1/exec", { json: { cmd: ["true"] } })).status;
  expect(await status(jwt)).toBe(200);
  expect(
    await eventually(
      () => status(jwt),
      (seen) => seen === 401,
    ),
  ).toBe(401);
  expect(await status((await issue()).jwt)).toBe(200);
  // One issued before with the longer lifetime is still good.
  expect(await status(sandbox.token)).toBe(200);
});
