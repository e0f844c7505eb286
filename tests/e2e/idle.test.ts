// Sandboxes that sleep when nothing happens in them, by what really happens: commands, traffic and processor time keep one
// awake, its owner's looks do not; one that sleeps is woken by the request that wants it.
import https from "node:https";
import { describe, expect, inject, test, type TestContext } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { eventually, sharedClient } from "../fixtures/client.ts";

const { target } = inject("service");
const client = sharedClient();
/** Well above what a busy machine may keep a server of a sandbox from its next byte. */
const idleSeconds = 5;

async function make(
  { onTestFinished }: TestContext,
  fields: Record<string, unknown> = {},
): Promise<TestSandbox> {
  const sandbox = await client.create(fields);
  onTestFinished(() => client.session.discard(sandbox.id));
  return sandbox;
}
/** The limit is set once all is arranged, however long that took. */
const mayBeIdle = ({ id }: TestSandbox, seconds = idleSeconds) =>
  client.gateway("UpdateSandbox", { id, idle_suspend_seconds: seconds });
const stateOf = async ({ id }: TestSandbox): Promise<string> =>
  (await client.gateway<{ sandbox: { state: string } }>("GetSandbox", { id })).sandbox.state;
const comesTo = async (sandbox: TestSandbox, state: string): Promise<void> => {
  const reached = await eventually(
    () => stateOf(sandbox),
    (seen) => seen === state,
    120_000,
  );
  expect(reached).toBe(state);
};
const asleep = "SANDBOX_STATE_SUSPENDED";
const awake = "SANDBOX_STATE_RUNNING";

/** Answers one request with a byte each 100 ms, without end. */
const stream = [
  "import http.server, time",
  "class Answer(http.server.BaseHTTPRequestHandler):",
  "    def do_GET(self):",
  "        self.send_response(200)",
  "        self.end_headers()",
  "        while True:",
  "            self.wfile.write(b'x')",
  "            time.sleep(0.1)",
  "http.server.HTTPServer(('127.0.0.1', 8000), Answer).serve_forever()",
].join("\n");
/** A quarter of a core, and not a sound. */
const compute = [
  "import time",
  "while True:",
  "    until = time.monotonic() + 0.05",
  "    while time.monotonic() < until: pass",
  "    time.sleep(0.15)",
].join("\n");

/** Reads a port of the sandbox through the edge until the answer is called. */
async function listen(sandbox: TestSandbox, port: number): Promise<() => void> {
  const host = `${port}-${sandbox.domain}`;
  const request = https.request({
    host: target.edgeHost,
    port: target.edgePort,
    servername: host.replace(/:\d+$/, ""),
    ca: target.ca,
    agent: false,
    headers: { host, authorization: `Bearer ${sandbox.token}` },
  });
  await new Promise<void>((resolve, reject) => {
    request.on("error", reject);
    request.on("response", (response) => {
      response.on("error", () => undefined);
      response.once("data", () => resolve());
      response.resume();
    });
    request.end();
  });
  return () => request.destroy();
}

/** They wait most of their time. */
describe.concurrent("idle_suspend_seconds", () => {
  test("a command, traffic and mere computing keep a sandbox awake; without them it sleeps", async (context) => {
    const [executing, serving, computing, idle] = await Promise.all([
      make(context),
      make(context),
      make(context),
      make(context),
    ]);
    const program = Buffer.from(stream);
    await client.call(serving, "POST", "/v1/files?path=/root/stream.py", { body: program });
    await client.call(serving, "PUT", "/v1/services/stream", {
      json: { cmd: "python3", args: ["/root/stream.py"], health_port: 8000 },
    });
    await client.call(serving, "POST", "/v1/services/stream/start");
    const stopListening = await listen(serving, 8_000);
    context.onTestFinished(stopListening);
    await client.call(computing, "POST", "/v1/files?path=/root/compute.py", { body: Buffer.from(compute) });
    await client.shell(computing, "python3 /root/compute.py > /dev/null 2>&1 &");
    const command = client
      .call(executing, "POST", "/v1/exec", { json: { cmd: ["sleep", "1000"] }, deadlineMs: 600_000 })
      .catch(() => undefined);
    await eventually(
      () => client.shell(executing, "pgrep -fxc 'sleep 1000' || true"),
      (count) => Number(count) === 1,
    );

    const busy = [executing, serving, computing];
    await Promise.all([...busy, idle].map((one) => mayBeIdle(one)));
    // Twice its time, by the same watch.
    await comesTo(idle, asleep);
    await client.gateway("ResumeSandbox", { id: idle.id });
    await comesTo(idle, awake);
    await comesTo(idle, asleep);
    // None of them wakes by itself: who is awake has never slept.
    expect(await Promise.all(busy.map(stateOf))).toEqual([awake, awake, awake]);

    stopListening();
    await client.exec(executing, ["pkill", "-fx", "sleep 1000"]);
    await command;
    await client.exec(computing, ["pkill", "-f", "compute.py"]);
    await Promise.all(busy.map((one) => comesTo(one, asleep)));
  });

  test("one that sleeps is woken by the requests that want it, and they wait", async (context) => {
    const sandbox = await make(context, { auto_resume: true });
    await client.shell(sandbox, "echo in memory > /dev/shm/note");
    await mayBeIdle(sandbox);
    await comesTo(sandbox, asleep);
    const answers = await Promise.all(
      Array.from({ length: 3 }, () => client.exec(sandbox, ["cat", "/dev/shm/note"])),
    );
    expect(answers.map(({ stdout }) => stdout)).toEqual(Array.from({ length: 3 }, () => "in memory\n"));
    // And sleeps again when they are gone.
    await comesTo(sandbox, asleep);
  });
});
