// E2B's own JavaScript client, from npm, against the E2B-compatible endpoint (docs/e2b.md). Its address is that of all sandboxes here;
// by domain: e2b-quickstart.test.ts.
import { afterAll, beforeAll, expect, inject, test } from "vitest";
import {
  AuthenticationError,
  CommandExitError,
  FileNotFoundError,
  NotFoundError,
  Sandbox,
  SandboxNotFoundError,
  type SandboxOpts,
  TimeoutError,
} from "e2b";
import { eventually } from "../fixtures/client.ts";
import { TestService } from "../fixtures/service.ts";

const { home, env, runtime } = inject("service");
let connection = { apiUrl: "", sandboxUrl: "", apiKey: "" };
let sandbox: Sandbox;

beforeAll(async () => {
  const { status } = await TestService.running(home, env);
  const { api_url: apiUrl, sandbox_url: sandboxUrl, api_key: apiKey } = status.e2b ?? raise();
  connection = { apiUrl, sandboxUrl, apiKey };
  expect(apiKey).toMatch(/^e2b_[0-9a-f]{40}$/);
  sandbox = await create({ envs: { GREETING: "hello" } });
});
afterAll(async () => {
  for (const id of made) await Sandbox.kill(id, connection).catch(() => undefined);
});

const raise = (): never => {
  throw new Error("the status names no e2b endpoint");
};
const made = new Set<string>();
async function create(options: SandboxOpts = {}): Promise<Sandbox> {
  const one = await Sandbox.create({ ...connection, timeoutMs: 600_000, ...options });
  made.add(one.sandboxId);
  return one;
}

test("commands give their output as it comes, their exit code, and what they were told", async () => {
  const pieces: string[] = [];
  const result = await sandbox.commands.run("echo $GREETING; echo $WHO >&2; pwd; whoami", {
    envs: { WHO: "world" },
    onStdout: (text) => void pieces.push(text),
  });
  expect(result).toMatchObject({ exitCode: 0, stderr: "world\n" });
  expect(pieces.join("")).toBe(result.stdout);
  const [greeting, folder, user] = result.stdout.split("\n");
  expect(greeting).toBe("hello");
  expect([folder, user]).toEqual(["/home/user", "user"]);
  expect((await sandbox.commands.run("sudo whoami")).stdout).toBe("root\n");
  expect((await sandbox.commands.run("pwd", { cwd: "/etc", user: "root" })).stdout).toBe("/etc\n");
  const failed = await sandbox.commands.run("echo oh; exit 7").catch((error: unknown) => error);
  expect(failed).toBeInstanceOf(CommandExitError);
  expect(failed).toMatchObject({ exitCode: 7, stdout: "oh\n", error: "exit status 7" });
});

test("a command in the background is written to, listed, connected to and killed", async () => {
  const cat = await sandbox.commands.run("cat", { background: true, stdin: true });
  await cat.sendStdin("one\n");
  await cat.sendStdin("two\n");
  await eventually(
    () => cat.stdout,
    (seen) => seen === "one\ntwo\n",
  );
  await cat.closeStdin();
  expect(await cat.wait()).toMatchObject({ exitCode: 0, stdout: "one\ntwo\n" });

  const sleeper = await sandbox.commands.run("echo begun; sleep 600; echo never", { background: true });
  const listed = (await sandbox.commands.list()).find(({ pid }) => pid === sleeper.pid);
  expect(listed).toMatchObject({ cmd: "/bin/bash", args: ["-l", "-c", "echo begun; sleep 600; echo never"] });
  await sleeper.disconnect();
  const again = await sandbox.commands.connect(sleeper.pid);
  expect(again.pid).toBe(sleeper.pid);
  expect(await sandbox.commands.kill(sleeper.pid)).toBe(true);
  await expect(again.wait()).rejects.toMatchObject({ exitCode: -1, error: "signal: killed" });
  expect(await sandbox.commands.kill(sleeper.pid)).toBe(false);
  await expect(sandbox.commands.connect(4_000_000)).rejects.toThrow(NotFoundError);
});

test("a command beyond its time is killed and told apart from one that failed", async () => {
  await expect(sandbox.commands.run("sleep 300", { timeoutMs: 1_000 })).rejects.toThrow(TimeoutError);
  const left = await eventually(
    async () => (await sandbox.commands.run("pgrep -fc '[s]leep 300' || true")).stdout.trim(),
    (seen) => seen === "0",
  );
  expect(left).toBe("0");
});

test("ten megabytes of output arrive whole", async () => {
  const { stdout } = await sandbox.commands.run("head -c 10485760 /dev/zero | tr '\\0' x");
  expect(stdout.length).toBe(10_485_760);
});

test("who is told wrongly is told so", async () => {
  await expect(sandbox.commands.run("true", { user: "nobody-here" })).rejects.toThrow(AuthenticationError);
  await expect(sandbox.commands.run("true", { cwd: "/not/there" })).rejects.toThrow("/not/there");
  await expect(sandbox.files.read("/not/there")).rejects.toThrow(FileNotFoundError);
  await expect(sandbox.files.read("/etc")).rejects.toThrow("directory");
});

test("a terminal has its size, takes keys, and is found again", async () => {
  let seen = "";
  const onData = (data: Uint8Array): void => void (seen += Buffer.from(data).toString());
  const terminal = await sandbox.pty.create({ cols: 91, rows: 27, onData, timeoutMs: 0 });
  await sandbox.pty.sendInput(terminal.pid, Buffer.from("stty size\n"));
  await eventually(
    () => seen,
    (text) => text.includes("27 91"),
  );
  await sandbox.pty.resize(terminal.pid, { cols: 100, rows: 30 });
  await sandbox.pty.sendInput(terminal.pid, Buffer.from("stty size\n"));
  await eventually(
    () => seen,
    (text) => text.includes("30 100"),
  );
  expect(seen).toContain("27 91");
  expect(seen).toContain("30 100");
  await terminal.disconnect();
  const again = await sandbox.pty.connect(terminal.pid, { onData });
  await sandbox.pty.sendInput(terminal.pid, Buffer.from("exit 3\n"));
  await expect(again.wait()).rejects.toMatchObject({ exitCode: 3 });
});

test("sandboxes are listed by metadata and state, page by page, newest first", async () => {
  const metadata = { group: `list & page ${sandbox.sandboxId}` };
  const older = await create({ metadata });
  const newer = await create({ metadata });
  const pages = Sandbox.list({ ...connection, limit: 1, query: { metadata, state: ["running"] } });
  const first = await pages.nextItems();
  expect([first.map(({ sandboxId }) => sandboxId), pages.hasNext]).toEqual([[newer.sandboxId], true]);
  const second = await pages.nextItems();
  expect([second.map(({ sandboxId }) => sandboxId), pages.hasNext]).toEqual([[older.sandboxId], false]);
  expect(second[0]).toMatchObject({ metadata, state: "running", templateId: "base" });
  const { startedAt } = await newer.getInfo();
  const since = async (time: Date): Promise<string[]> =>
    (await Sandbox.list({ ...connection, query: { metadata, startedAfter: time } }).nextItems()).map(
      ({ sandboxId }) => sandboxId,
    );
  expect(await since(startedAt)).toEqual([newer.sandboxId]);
  expect(await since(new Date(startedAt.getTime() + 1_000))).toEqual([]);
  await older.pause();
  const paused = await Sandbox.list({ ...connection, query: { metadata, state: ["paused"] } }).nextItems();
  expect(paused.map(({ sandboxId, state }) => [sandboxId, state])).toEqual([[older.sandboxId, "paused"]]);
  await Promise.all([older.kill(), newer.kill()]);
});

test("a paused sandbox does not run, and goes on when it is connected to", async () => {
  const one = await create();
  const sleeper = await one.commands.run("sleep 600", { background: true, timeoutMs: 0 });
  expect(await one.pause()).toBe(true);
  expect(await one.pause()).toBe(false);
  expect(await one.isRunning()).toBe(false);
  await expect(one.commands.run("true")).rejects.toThrow(SandboxNotFoundError);
  const again = await Sandbox.connect(one.sandboxId, connection);
  expect(await again.isRunning()).toBe(true);
  expect((await again.commands.list()).map(({ pid }) => pid)).toContain(sleeper.pid);
  await again.kill();
});

test("a sandbox that is paused without its memory starts anew from its disk", async () => {
  const one = await create();
  await one.files.write("kept.txt", "kept");
  await one.commands.run("sleep 600", { background: true, timeoutMs: 0 });
  await one.pause({ keepMemory: false });
  await one.connect();
  expect(await one.files.read("kept.txt")).toBe("kept");
  expect(await one.commands.list()).toEqual([]);
  await one.kill();
});

test("a create that is repeated with its idempotency key answers the same sandbox", async () => {
  const ask = async (metadata: Record<string, string>): Promise<[number, string]> => {
    const answer = await fetch(`${connection.apiUrl}/v2/sandboxes`, {
      method: "POST",
      headers: {
        "x-api-key": connection.apiKey,
        "idempotency-key": `once-${sandbox.sandboxId}-${"0".repeat(150)}`,
      },
      body: JSON.stringify({ templateID: "base", timeout: 600, metadata }),
    });
    const { sandboxID = "" } = (await answer.json()) as { sandboxID?: string };
    return [answer.status, sandboxID];
  };
  const [status, id] = await ask({ n: "1" });
  made.add(id);
  expect([status, await ask({ n: "1" })]).toEqual([201, [201, id]]);
  expect((await ask({ n: "2" }))[0]).toBe(409);
});

test("a kill ends what runs, and then there is no such sandbox", async () => {
  const one = await create();
  const running = await one.commands.run("sleep 600", { background: true });
  expect(await one.kill()).toBe(true);
  const error = await running.wait().catch((thrown: unknown) => thrown);
  expect(error).toBeInstanceOf(TimeoutError);
  expect(String(error)).toContain("sandbox was killed or reached its end of life");
  expect(await one.isRunning()).toBe(false);
  expect(await Sandbox.kill(one.sandboxId, connection)).toBe(false);
  await expect(Sandbox.connect(one.sandboxId, connection)).rejects.toThrow(SandboxNotFoundError);
  await expect(Sandbox.getInfo(one.sandboxId, connection)).rejects.toThrow(SandboxNotFoundError);
});

test("its time ends a sandbox, or pauses it where that was asked for", async () => {
  const [ending, pausing] = await Promise.all([
    create({ timeoutMs: 600_000 }),
    create({ timeoutMs: 600_000, lifecycle: { onTimeout: "pause" } }),
  ]);
  const { endAt } = await ending.getInfo();
  expect(endAt.getTime() - Date.now()).toBeGreaterThan(500_000);
  await Promise.all([ending.setTimeout(1_000), pausing.setTimeout(1_000)]);
  const stateOf = async (one: Sandbox): Promise<string> =>
    one.getInfo().then(
      ({ state }) => state,
      (error: unknown) => (error instanceof SandboxNotFoundError ? "gone" : String(error)),
    );
  expect(
    await eventually(
      () => stateOf(ending),
      (state) => state === "gone",
    ),
  ).toBe("gone");
  expect(
    await eventually(
      () => stateOf(pausing),
      (state) => state === "paused",
    ),
  ).toBe("paused");
  await pausing.kill();
});

test("a fork has the disk and the processes of its source", async () => {
  const sleeper = await sandbox.commands.run("sleep 600", { background: true, timeoutMs: 0 });
  await sandbox.files.write("state.txt", "before");
  const forks = await sandbox.fork({ count: 2, timeoutMs: 600_000 });
  const [first, second] = forks.map((one) => {
    if (one instanceof Error) throw one;
    made.add(one.sandboxId);
    return one;
  }) as [Sandbox, Sandbox];
  await first.files.write("state.txt", "in the fork");
  expect([await sandbox.files.read("state.txt"), await second.files.read("state.txt")]).toEqual([
    "before",
    "before",
  ]);
  expect((await second.commands.list()).map(({ pid }) => pid)).toContain(sleeper.pid);
  await Promise.all([first.kill(), second.kill(), sleeper.kill()]);
});

test("a snapshot outlives its sandbox, is found by name, and sandboxes are made from it", async () => {
  const one = await create();
  await one.files.write("kept.txt", "kept");
  const name = `snap-${one.sandboxId}`;
  const snapshot = await one.createSnapshot({ name });
  expect((await one.listSnapshots().nextItems()).map(({ snapshotId }) => snapshotId)).toEqual([
    snapshot.snapshotId,
  ]);
  expect((await Sandbox.listSnapshots({ ...connection, name }).nextItems())[0]).toEqual(snapshot);
  await one.kill();
  for (const origin of [snapshot.snapshotId, name]) {
    const other = await Sandbox.create(origin, { ...connection, timeoutMs: 600_000 });
    made.add(other.sandboxId);
    expect(await other.files.read("kept.txt")).toBe("kept");
    await other.kill();
  }
  expect(await Sandbox.deleteSnapshot(snapshot.snapshotId, connection)).toBe(true);
  expect(await Sandbox.deleteSnapshot(snapshot.snapshotId, connection)).toBe(false);
});

test("a server is reached through its port, by everybody or with the traffic token alone", async () => {
  const closed = await create({ network: { allowPublicTraffic: false } });
  for (const one of [sandbox, closed])
    await one.commands.run(
      "mkdir -p /tmp/www && echo served > /tmp/www/index.html && cd /tmp/www && python3 -m http.server 8000",
      { background: true, timeoutMs: 0 },
    );
  expect(sandbox.getHost(8000)).toMatch(new RegExp(`^8000-${sandbox.sandboxId}\\.`));
  const ask = async (one: Sandbox, more: Record<string, string> = {}): Promise<[number, string]> => {
    const headers = { "E2b-Sandbox-Id": one.sandboxId, "E2b-Sandbox-Port": "8000", ...more };
    const answer = await fetch(connection.sandboxUrl, { headers });
    return [answer.status, await answer.text()];
  };
  const served = ([status]: [number, string]): boolean => status === 200;
  expect(await eventually(() => ask(sandbox), served)).toEqual([200, "served\n"]);
  const token = closed.trafficAccessToken ?? "";
  expect(await eventually(() => ask(closed, { "e2b-traffic-access-token": token }), served)).toEqual([
    200,
    "served\n",
  ]);
  expect((await ask(closed))[0]).toBe(401);
  expect((await ask(closed, { "e2b-traffic-access-token": "made up" }))[0]).toBe(401);
  await closed.kill();
});

test("what a sandbox uses is told, the present and the past", async () => {
  const samples = await eventually(
    () => sandbox.getMetrics(),
    ({ length }) => length > 1,
  );
  expect(samples.length).toBeGreaterThan(1);
  const latest = samples.at(-1);
  expect(latest).toMatchObject({ cpuCount: 2, memTotal: 1_024 * 1_048_576 });
  expect(latest?.memUsed).toBeGreaterThan(1_048_576);
  expect(latest?.diskUsed).toBeGreaterThan(0);
  expect(await sandbox.getMetrics({ start: new Date(Date.now() + 60_000) })).toEqual([]);
});

test("the network is what was asked for, and can be changed", async () => {
  const one = await create({ allowInternetAccess: false });
  expect(await one.getInfo()).toMatchObject({ allowInternetAccess: false });
  await one.updateNetwork({ allowOut: ["1.1.1.1"], denyOut: ["0.0.0.0/0"] });
  expect((await one.getInfo()).network).toMatchObject({ allowOut: ["1.1.1.1"], denyOut: ["0.0.0.0/0"] });
  await one.kill();
});

test("what is not offered is refused with words", async () => {
  await expect(create({ template: "no-such-template" })).rejects.toThrow(
    "template 'no-such-template' not found",
  );
  await expect(create({ volumeMounts: { "/data": "a-volume" } })).rejects.toThrow(
    "does not offer volumeMounts",
  );
  await expect(create({ network: { denyOut: ["8.8.8.8"] } })).rejects.toThrow("denyOut of single addresses");
  await expect(Sandbox.create({ ...connection, apiKey: `e2b_${"0".repeat(40)}` })).rejects.toThrow(
    AuthenticationError,
  );
  expect(runtime).not.toBe("");
});
