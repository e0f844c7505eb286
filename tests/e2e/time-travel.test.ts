// Checkpoint, restore, suspend, resume and fork as a user lives them: a counter that goes on from the number it had.
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { eventually, sharedClient } from "../fixtures/client.ts";
import { Outside } from "../fixtures/outside.ts";

const client = sharedClient();

const counter = [
  "import time, uuid",
  "mine = uuid.uuid4().hex",
  "count = 0",
  "while True:",
  "    count += 1",
  "    open('/root/count', 'w').write(f'{count} {mine}')",
  "    time.sleep(0.05)",
].join("\n");

interface Count {
  count: number;
  mine: string;
}
/** It goes on counting: looked at until it has. */
const countsOnFrom = async (sandbox: TestSandbox, count: number): Promise<void> =>
  await expect.poll(async () => (await countIn(sandbox)).count, { timeout: 20_000 }).toBeGreaterThan(count);

async function countIn(sandbox: TestSandbox): Promise<Count> {
  // A write in place is seen empty at times.
  const { stdout } = await eventually(
    () => client.exec(sandbox, ["cat", "/root/count"]),
    (seen) => seen.stdout.includes(" "),
  );
  const [count = "", mine = ""] = stdout.split(" ");
  return { count: Number(count), mine };
}

interface Answer {
  sandbox: { id: string; state: string; domain: string };
  data_plane_token: string;
}
/** Gone when the test ends: what goes on in it would slow down all that follows. */
function forThisTest<Made extends { id: string }>(made: Made): Made {
  onTestFinished(() => client.session.discard(made.id));
  return made;
}
const bootId = "/proc/sys/kernel/random/boot_id";

async function fork(source: TestSandbox, fields: Record<string, unknown> = {}): Promise<TestSandbox> {
  const made = await client.gateway<Answer>("ForkSandbox", { source_sandbox_id: source.id, ...fields });
  client.session.adopt(made.sandbox.id);
  forThisTest(made.sandbox);
  const state = await eventually(
    async () => (await client.gateway<Answer>("GetSandbox", { id: made.sandbox.id })).sandbox,
    (seen) => seen.state !== "SANDBOX_STATE_CREATING",
  );
  expect(state.state).toBe("SANDBOX_STATE_RUNNING");
  return { id: made.sandbox.id, domain: state.domain, token: made.data_plane_token };
}

async function into(sandbox: TestSandbox, method: string, state: string): Promise<void> {
  await client.gateway(method, { id: sandbox.id });
  const reached = await eventually(
    async () => (await client.gateway<Answer>("GetSandbox", { id: sandbox.id })).sandbox,
    (seen) => seen.state === state,
    60_000,
  );
  expect(reached.state).toBe(state);
}

describe("a counter that runs as a service", () => {
  let sandbox: TestSandbox;
  beforeAll(async () => {
    sandbox = await client.create({ name: "counter" });
    await client.call(sandbox, "POST", "/v1/files?path=/root/counter.py", { body: Buffer.from(counter) });
    const definition = { cmd: "python3", args: ["/root/counter.py"], working_dir: "/root" };
    await client.call(sandbox, "PUT", "/v1/services/counter", { json: definition });
    const started = await client.call(sandbox, "POST", "/v1/services/counter/start");
    expect(JSON.parse(started.body.toString())).toMatchObject({ status: "running" });
  });
  afterAll(() => client.session.discard(sandbox.id));

  test("goes on in five forks from the same number, and they diverge", async () => {
    const before = await countIn(sandbox);
    const clones = await Promise.all(Array.from({ length: 5 }, () => fork(sandbox)));
    const counts = await Promise.all(clones.map((clone) => countIn(clone)));
    for (const { count, mine } of counts) {
      // The same process, memory and all: it did not start over.
      expect(mine).toBe(before.mine);
      expect(count).toBeGreaterThanOrEqual(before.count);
    }
    // Each goes on by itself; two looks in a row may come between two steps.
    for (const [index, clone] of clones.entries()) {
      const goesOn = expect.poll(async () => (await countIn(clone)).count, { timeout: 20_000 });
      await goesOn.toBeGreaterThan(counts[index]?.count ?? 0);
    }
    expect((await countIn(sandbox)).mine).toBe(before.mine);
    // What one writes no other sees.
    await client.shell(clones[0] as TestSandbox, "echo mine > /root/only-here");
    expect((await client.exec(clones[1] as TestSandbox, ["cat", "/root/only-here"])).ok).toBe(false);
    expect((await client.exec(sandbox, ["cat", "/root/only-here"])).ok).toBe(false);
  });

  test("clones differ where they must: names, ids, random numbers", async () => {
    const [one, two] = await Promise.all([fork(sandbox), fork(sandbox)]);
    const identity = `hostname; cat /etc/machine-id ${bootId}; head -c 16 /dev/urandom | od -An -tx1`;
    const [source, first, second] = await Promise.all(
      [sandbox, one, two].map(async (each) => (await client.shell(each, identity)).trim().split("\n")),
    );
    for (const [index, line] of (source ?? []).entries())
      expect(new Set([line, first?.[index], second?.[index]]).size, `line ${index}: ${line}`).toBe(3);
  });

  test("twelve clones of one call are of one instant, though they are not made at once", async () => {
    const ticks = "import time\nwhile True:\n    print(time.time(), flush=True); time.sleep(0.005)";
    await client.shell(sandbox, `nohup python3 -c '${ticks}' > /root/ticks 2>/dev/null &`);
    const fromSeconds = Number(await client.shell(sandbox, "sleep 0.3; tail -n 1 /root/ticks"));
    const { sandboxes, data_plane_tokens } = await client.gateway<{
      sandboxes: TestSandbox[];
      data_plane_tokens: string[];
    }>("ForkSandbox", { source_sandbox_id: sandbox.id, count: 12, name: "clone" });
    const clones = sandboxes.map(({ id }, index) => ({ id, token: data_plane_tokens[index] ?? "" }));
    for (const clone of clones) client.session.adopt(forThisTest(clone).id);
    // The longest pause since the call is that between the snapshot and the first tick of the clone.
    const lastTick = [
      "import sys",
      `ticks = [float(line) for line in open('/root/ticks') if float(line) >= ${fromSeconds}]`,
      "print(max(zip(ticks, ticks[1:]), key=lambda pair: pair[1] - pair[0])[0])",
    ].join("\n");
    const instants: string[] = [];
    for (const { id, token } of clones) {
      const { sandbox: made } = await eventually(
        () => client.gateway<Answer>("GetSandbox", { id }),
        ({ sandbox: seen }) => seen.state !== "SANDBOX_STATE_CREATING",
        60_000,
      );
      expect(made.state).toBe("SANDBOX_STATE_RUNNING");
      const clone = { id, token, domain: made.domain };
      instants.push((await client.exec(clone, ["python3", "-c", lastTick])).stdout);
    }
    expect(new Set(instants).size, instants.join("")).toBe(1);
    await client.shell(sandbox, "pkill -f '[t]ime.time'; rm /root/ticks");
  });

  test("a fork of a fork, and the source may go", async () => {
    const child = await fork(sandbox);
    const before = await countIn(child);
    const grandchild = await fork(child);
    const ids = await Promise.all(
      [sandbox, child, grandchild].map((each) => client.exec(each, ["cat", bootId])),
    );
    expect(new Set(ids.map(({ stdout }) => stdout)).size).toBe(3);
    await client.session.discard(child.id);
    const after = await countIn(grandchild);
    expect(after.mine).toBe(before.mine);
    await countsOnFrom(grandchild, after.count);
  });

  test("stands still while suspended and goes on after", async () => {
    const before = await countIn(sandbox);
    await into(sandbox, "SuspendSandbox", "SANDBOX_STATE_SUSPENDED");
    await into(sandbox, "ResumeSandbox", "SANDBOX_STATE_RUNNING");
    const after = await countIn(sandbox);
    expect(after.mine).toBe(before.mine);
    expect(after.count).toBeGreaterThanOrEqual(before.count);
    await countsOnFrom(sandbox, after.count);
    const clock = Number(await client.shell(sandbox, "date +%s"));
    expect(Math.abs(clock - Date.now() / 1_000)).toBeLessThan(5);
    const record = await client.call(sandbox, "GET", "/v1/services/counter");
    expect(JSON.parse(record.body.toString())).toMatchObject({ status: "running" });
  });

  test("is forked while suspended, without being woken, and both go on from there", async () => {
    const before = await countIn(sandbox);
    await into(sandbox, "SuspendSandbox", "SANDBOX_STATE_SUSPENDED");
    const [one, two] = await Promise.all([fork(sandbox), fork(sandbox)]);
    const { sandbox: source } = await client.gateway<Answer>("GetSandbox", { id: sandbox.id });
    expect(source.state).toBe("SANDBOX_STATE_SUSPENDED");
    const copies = await Promise.all([countIn(one), countIn(two)]);
    expect(copies.map(({ mine }) => mine)).toEqual([before.mine, before.mine]);
    await client.session.discard(one.id);
    await into(sandbox, "ResumeSandbox", "SANDBOX_STATE_RUNNING");
    const after = await countIn(sandbox);
    expect(after.mine).toBe(before.mine);
    await Promise.all([countsOnFrom(sandbox, after.count), countsOnFrom(two, before.count)]);
    const names = await Promise.all([sandbox, two].map((each) => client.shell(each, "hostname")));
    expect(new Set(names).size).toBe(2);
  });

  test("survives the loss of its whole system by a restore", async () => {
    const before = await countIn(sandbox);
    const taken = await client.call(sandbox, "POST", "/v1/checkpoint", { json: { name: "whole" } });
    const { checkpoint_id } = JSON.parse(taken.body.toString()) as { checkpoint_id: string };
    await client.exec(sandbox, ["sh", "-c", "rm -rf /usr /etc /lib /lib64 /bin /root 2>/dev/null"]);
    expect((await client.exec(sandbox, ["python3", "--version"])).exit_code).toBe(127);
    const restored = await client.call(sandbox, "POST", "/v1/restore", { json: { checkpoint_id } });
    expect(restored.status, restored.body.toString()).toBe(200);
    expect(JSON.parse(restored.body.toString())).toMatchObject({ ok: true, started_services: ["counter"] });
    expect(await client.shell(sandbox, "python3 -c 'print(6*7)'")).toBe("42\n");
    // Until it writes for the first time, there stands what the one of then had written.
    const first = await eventually(
      () => countIn(sandbox),
      ({ mine }) => mine !== before.mine,
    );
    expect(first.mine).not.toBe(before.mine);
    await countsOnFrom(sandbox, first.count);
  });
});

/** Holds one connection to an address outside and one to itself, says something through each without end, and notes both. */
const talker = [
  "import os, socket, sys, threading, time",
  "def note(name, text):",
  "    open(f'/root/{name}.new', 'w').write(text)",
  "    os.rename(f'/root/{name}.new', f'/root/{name}')",
  "outside = socket.create_connection((sys.argv[1], 80))",
  "outside.recv(100)",
  "listener = socket.create_server(('127.0.0.1', 0))",
  "inside = socket.create_connection(listener.getsockname())",
  "peer, _ = listener.accept()",
  "def talk_outside():",
  "    how, exchanges = 'closed', 0",
  "    try:",
  "        while outside.sendall(b'x') is None and outside.recv(1):",
  "            note('outside', f'{exchanges}')",
  "            exchanges += 1",
  "            time.sleep(0.05)",
  "    except OSError as error:",
  "        how = error.strerror",
  "    note('outside', how)",
  "threading.Thread(target=talk_outside, daemon=True).start()",
  "said = 0",
  "while True:",
  "    inside.sendall(b'x')",
  "    said += len(peer.recv(1))",
  "    note('inside', f'{said}')",
  "    time.sleep(0.05)",
].join("\n");

describe("connections", () => {
  let outside: Outside;
  beforeAll(async () => {
    outside = await Outside.open();
    await outside.serve("0.0.0.0", 80);
  });
  afterAll(() => outside?.close());

  test("to the outside end in a clone and go on in its source, those to itself live on in both", async () => {
    const source = forThisTest(await client.create());
    const noted = async (sandbox: TestSandbox, name: string): Promise<string> =>
      (await client.exec(sandbox, ["cat", `/root/${name}`])).stdout;
    const comesTo = (sandbox: TestSandbox, name: string) =>
      expect.poll(() => noted(sandbox, name), { timeout: 60_000 });
    await client.call(source, "POST", "/v1/files?path=/root/talker.py", { body: Buffer.from(talker) });
    await client.shell(source, `python3 /root/talker.py ${Outside.PUBLIC} > /root/talker.log 2>&1 &`);
    await comesTo(source, "inside").toMatch(/^\d+$/);
    // The server never closes: until the fork the connection stays for as long as anybody waits.
    await comesTo(source, "outside").toMatch(/^\d+$/);
    const said = Number(await noted(source, "inside"));
    const clone = await fork(source);
    await comesTo(clone, "outside").not.toMatch(/^\d*$/);
    const exchanged = Number(await noted(source, "outside"));
    await expect
      .poll(async () => Number(await noted(source, "outside")), { timeout: 60_000 })
      .toBeGreaterThan(exchanged + 5);
    await expect
      .poll(async () => Number(await noted(clone, "inside")), { timeout: 60_000 })
      .toBeGreaterThan(said + 5);
    // It is the program that was forked, and it runs on.
    expect(await client.shell(clone, "cat /root/talker.log; pgrep -fc '[t]alker.py'")).toBe("1\n");
  });
});

describe("at the same time", () => {
  test("two suspends, two resumes, and a delete during each are never refused wrongly", async () => {
    for (const method of ["SuspendSandbox", "ResumeSandbox"]) {
      const sandbox = forThisTest(await client.create());
      if (method === "ResumeSandbox") await into(sandbox, "SuspendSandbox", "SANDBOX_STATE_SUSPENDED");
      const twice = await Promise.allSettled([1, 2].map(() => client.gateway(method, { id: sandbox.id })));
      expect(twice.map(({ status }) => status)).toEqual(["fulfilled", "fulfilled"]);
      expect(await client.gateway("DeleteSandbox", { id: sandbox.id })).toEqual({});
      const gone = await eventually(
        () => client.gateway("GetSandbox", { id: sandbox.id }).catch((error: Error) => error.message),
        (seen) => typeof seen === "string",
      );
      expect(gone).toContain("404");
    }
  });

  test("a checkpoint, a fork and a write storm leave a whole disk", async () => {
    const sandbox = forThisTest(await client.create());
    await client.shell(
      sandbox,
      "mkdir /root/storm; (i=0; while :; do i=$((i+1)); echo $i > /root/storm/$((i % 50)); done) > /dev/null 2>&1 &",
    );
    const [taken, clone] = await Promise.all([client.call(sandbox, "POST", "/v1/checkpoint"), fork(sandbox)]);
    expect(taken.status, taken.body.toString()).toBe(200);
    // Every file is whole: a number and a newline.
    expect(await client.shell(clone, "cat /root/storm/* | grep -vcE '^[0-9]+$' || true")).toBe("0\n");
  });

  test("two restores at once: one wins, none is lost", async () => {
    const sandbox = forThisTest(await client.create());
    await client.shell(sandbox, "echo before > /root/when");
    const taken = await client.call(sandbox, "POST", "/v1/checkpoint");
    const { checkpoint_id } = JSON.parse(taken.body.toString()) as { checkpoint_id: string };
    await client.shell(sandbox, "echo after > /root/when");
    const answers = await Promise.all(
      [1, 2].map(() => client.call(sandbox, "POST", "/v1/restore", { json: { checkpoint_id } })),
    );
    const statuses = answers.map(({ status }) => status).sort();
    expect(statuses[0]).toBe(200);
    expect([200, 409, 503]).toContain(statuses[1]);
    expect(await client.shell(sandbox, "cat /root/when")).toBe("before\n");
  });
});
