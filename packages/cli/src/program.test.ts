import { expect, test } from "vitest";
import { failure, FakeService, otherId, sandboxId } from "./testing/fake-service.ts";

test("a sandbox is named by id, name or the beginning of an id, where that is unambiguous", async () => {
  const service = new FakeService();
  service.sandboxes.push(service.sandbox(otherId, "other"));
  for (const arg of [sandboxId, "demo", "sbx-aaa"]) {
    expect(JSON.parse((await service.run(["get", arg, "--json"])).stdout)).toMatchObject({ id: sandboxId });
  }
  expect(await service.run(["get", "sbx-"])).toMatchObject({ code: 4 });
  expect(await service.run(["get", "nobody"])).toMatchObject({
    code: 4,
    stderr: expect.stringContaining("see cloche ls") as string,
  });
  service.sandboxes.push(service.sandbox("sbx-cccccccccccccccccccc", "demo"));
  const twice = await service.run(["get", "demo"]);
  expect(twice.code).toBe(4);
  expect(twice.stderr).toMatch(/2 sandboxes are named "demo": sbx-a+, sbx-c+; use an id/);
  expect((await service.run(["get", "sbx-zzzzzzzzzzzzzzzzzzzz"])).code).toBe(4);
});

test("create sends what was asked for and nothing else", async () => {
  const service = new FakeService();
  await service.run([
    "create",
    "--name",
    "n",
    "--cpus",
    "0.5",
    "--memory",
    "512",
    "-e",
    "A=b",
    "--metadata",
    "k=v",
    "--timeout",
    "2h",
    "--on-timeout",
    "suspend",
    "--on-host-loss",
    "restart_from_checkpoint",
    "--checkpoint-every",
    "5m",
    "--public-port",
    "80",
    "--public-port",
    "81",
    "--auto-resume",
    "--idempotency-key",
    "order 17",
  ]);
  expect(service.sent("CreateSandbox")).toEqual({
    name: "n",
    cpus: 0.5,
    memory_mb: 512,
    env: { A: "b" },
    metadata: { k: "v" },
    timeout_seconds: 7_200,
    on_timeout: "suspend",
    on_host_loss: "restart_from_checkpoint",
    checkpoint_every_seconds: 300,
    public_ports: [80, 81],
    auto_resume: true,
    idempotency_key: "order 17",
  });
  await service.run(["create"]);
  expect(service.sent("CreateSandbox")).toEqual({});
  for (const wrong of [
    ["--cpus", "-1"],
    ["--memory", "1.5"],
    ["--timeout", "soon"],
    ["--public-port", "0"],
    ["--on-timeout", "stop"],
    ["-e", "novalue"],
    ["--runtime", "docker"],
  ]) {
    expect(await service.run(["create", ...wrong])).toMatchObject({ code: 2 });
  }
});

test("ls prints a table, ids or JSON", async () => {
  const service = new FakeService();
  const created_at = new Date(Date.now() - 3 * 3_600_000).toISOString();
  const lost = {
    state: "SANDBOX_STATE_ERROR",
    error_message: `its host was lost ${"x".repeat(60)}`,
    host_id: "h-1",
  };
  const soon = new Date(Date.now() + 10 * 60_500).toISOString();
  service.sandboxes = [
    service.sandbox(sandboxId, "demo", { created_at, expires_at: soon, on_timeout: "suspend" }),
    service.sandbox(otherId, "gone", { created_at, memory_mb: 512, ...lost }),
  ];
  expect((await service.run(["ls"])).stdout).toBe(
    `ID                        NAME  STATE    AGE  SIZE        EXPIRES           REASON
${sandboxId}  demo  running  3h   2c 1G 8G    in 10m (suspend)
${otherId}  gone  error    3h   2c 512M 8G  never             its host was lost ${"x".repeat(41)}…
`,
  );
  const wide = (await service.run(["ls", "-o", "wide"])).stdout;
  expect(wide).toContain("EXPIRES           HOST  RUNTIME  CREATED ");
  expect(wide).toContain(`h-1   -        ${created_at}  ${otherId}.cloche.test  ${lost.error_message}\n`);
  service.sandboxes = service.sandboxes.slice(0, 1);
  expect((await service.run(["ls", "-q"])).stdout).toBe(`${sandboxId}\n`);
  await service.run(["ls", "--state", "suspended"]);
  expect(service.sent("ListSandboxes")).toMatchObject({ states: ["SANDBOX_STATE_SUSPENDED"] });
  await service.run(["ls", "--state", "SANDBOX_STATE_ERROR", "--state", "RUNNING"]);
  expect(service.sent("ListSandboxes")).toMatchObject({
    states: ["SANDBOX_STATE_ERROR", "SANDBOX_STATE_RUNNING"],
  });
  expect(await service.run(["ls", "--state", "stopped"])).toMatchObject({
    code: 2,
    stderr: expect.stringContaining("running, suspending, suspended") as string,
  });
  expect(JSON.parse((await service.run(["ls", "--json"])).stdout)).toEqual({ sandboxes: service.sandboxes });
});

test("rm deletes each, suspend and resume wait, update changes only what was named", async () => {
  const service = new FakeService();
  service.sandboxes.push(service.sandbox(otherId, "other"));
  expect((await service.run(["rm", "demo", "other"])).stdout).toBe(`${sandboxId}\n${otherId}\n`);
  expect((await service.run(["delete", "other"])).stdout).toBe(`${otherId}\n`);
  service.answers.GetSandbox = () => ({
    sandbox: service.sandbox(sandboxId, "demo", { state: "SANDBOX_STATE_SUSPENDED" }),
  });
  service.answers.SuspendSandbox = () => ({
    sandbox: service.sandbox(sandboxId, "demo", { state: "SANDBOX_STATE_SUSPENDING" }),
  });
  expect((await service.run(["suspend", "demo"])).stdout).toMatch(/state +suspended/);
  expect(service.sent("SuspendSandbox")).toEqual({ id: sandboxId });
  await service.run(["suspend", "demo", "--no-memory"]);
  expect(service.sent("SuspendSandbox")).toEqual({ id: sandboxId, memory: false });
  delete service.answers.GetSandbox;
  await service.run(["update", "demo", "--no-public-port", "--timeout", "0", "--no-auto-resume"]);
  expect(service.sent("UpdateSandbox")).toEqual({
    id: sandboxId,
    public_ports: { ports: [] },
    timeout_seconds: 0,
    auto_resume: false,
  });
  expect((await service.run(["update", "demo"])).code).toBe(2);
  expect((await service.run(["update", "demo", "--check"])).code).toBe(2);
  // Without a sandbox it is about the machine, and takes no option of a sandbox.
  expect((await service.run(["update", "--timeout", "5m"])).stderr).toContain("name it");
  await service.run(["fork", "demo", "--name", "two", "--idempotency-key", "k"]);
  expect(service.sent("ForkSandbox")).toEqual({
    source_sandbox_id: sandboxId,
    name: "two",
    idempotency_key: "k",
  });
  const many = await service.run(["fork", "demo", "--count", "3"]);
  expect(service.sent("ForkSandbox")).toEqual({ source_sandbox_id: sandboxId, count: 3 });
  expect(many.stdout).toMatch(/^ID +NAME .*\nsbx-b+ +fork +running /);
  expect(JSON.parse((await service.run(["fork", "demo", "--count", "1", "--json"])).stdout)).toEqual({
    sandboxes: [service.sandbox(otherId, "fork")],
  });
  expect((await service.run(["fork", "demo", "--count", "few"])).code).toBe(2);
});

test("a start tells at a terminal how far the images are that it waits for", async () => {
  const service = new FakeService();
  const web = { name: "web", cmd: "x", status: "unknown", phase: "starting", pid: 0, error: "" };
  const pull = { layers_done: 1, layers_total: 3, bytes_done: 1024 ** 2, bytes_total: 8 * 1024 ** 2 };
  const db = { ...web, name: "db", phase: "pulling", pull: { stage: "fetching", ...pull } };
  service.answers["GET /v1/services"] = () => ({ services: [db, web] });
  service.answers["POST /v1/services/web/start"] = async () => {
    await expect.poll(() => service.shown()).toMatch(/db: pulling: 1 MiB of 8 MiB, 1 of 3 layers \d/);
    return { ...web, status: "running", phase: "" };
  };
  service.isTerminal = true;
  const { code, stdout } = await service.run(["service", "start", "demo", "web"]);
  expect([code, stdout]).toEqual([0, expect.stringMatching(/^status +running$/m)]);
  service.isTerminal = false;
  service.answers["POST /v1/services/web/start"] = () => ({ ...web, status: "running", phase: "" });
  service.asked.length = 0;
  expect((await service.run(["service", "start", "demo", "web"])).stderr).toBe("");
  expect(service.asked.filter(({ path }) => path === "/v1/services")).toEqual([]);
});

test("a person at a terminal is told what is waited for and for how long; programs are not", async () => {
  const service = new FakeService();
  service.env = { NO_COLOR: "1" };
  const id = "ckpt-aaaaaaaaaaaaaaaaaaaa";
  /** The lines that stay, each with its final time. */
  const lines = (stderr: string): string[] =>
    stderr.split("\n").map((line) => (line.split("\x1b[K").at(-1) ?? "").replace(/ \d+\.\d s$/, " _"));
  const creating = service.sandbox(otherId, "fork", { state: "SANDBOX_STATE_CREATING" });
  service.answers.ForkSandbox = async () => {
    // Drawn at once, and again while it lasts.
    await expect
      .poll(() => service.shown())
      .toMatch(/^\r\x1b\[Kforking demo 0\.0 s[^]*\r\x1b\[Kforking demo 0\.[1-9] s/);
    return { sandbox: creating, data_plane_token: "", data_plane_token_expires_at_unix: 0 };
  };
  const seen = [creating, creating, service.sandbox(otherId, "fork")];
  service.answers.GetSandbox = ({ text }) =>
    text.includes(otherId) ? { sandbox: seen.shift() } : { sandbox: service.sandboxes[0] };
  service.isTerminal = true;
  expect(lines((await service.run(["fork", "demo"])).stderr)).toEqual([
    "forking demo _",
    "fork: running _",
    "",
  ]);
  expect(service.shown()).toContain("fork: creating 0.0 s");

  const suspended = service.sandbox(sandboxId, "demo", { state: "SANDBOX_STATE_SUSPENDED" });
  service.answers.GetSandbox = () => ({ sandbox: suspended });
  expect(lines((await service.run(["suspend", "demo"])).stderr)).toEqual(["demo: suspended _", ""]);
  service.answers["POST /v1/checkpoint"] = () => ({ checkpoint_id: id, ok: true });
  service.answers["POST /v1/checkpoint/wait"] = () => ({ visible: true, waited_ms: 5 });
  const taken = await service.run(["checkpoint", "create", "demo", "--wait"]);
  expect(taken.stdout).toBe(`${id}\n`);
  expect(lines(taken.stderr)).toEqual([
    "taking a checkpoint of demo _",
    "waiting until it is in storage _",
    "",
  ]);
  service.columns = 24;
  expect(lines((await service.run(["checkpoint", "create", "demo"])).stderr)).toEqual([
    "taking a checkpoi _",
    "",
  ]);
  service.answers["POST /v1/restore"] = () => failure(409, "aborted", "another restore goes on");
  expect(lines((await service.run(["restore", "demo", id])).stderr)).toEqual([
    "cloche: another restore goes on (request req-1)",
    "",
  ]);
  expect((await service.run(["checkpoint", "create", "demo", "--json"])).stderr).toBe("");
  service.isTerminal = false;
  expect((await service.run(["checkpoint", "create", "demo"])).stderr).toBe("");
});

test("errors go to stderr with their own exit codes, as JSON where asked", async () => {
  const service = new FakeService();
  const codes: Array<[Response, number]> = [
    [failure(401, "unauthenticated", "API key is unknown"), 5],
    [failure(400, "failed_precondition", "it is SUSPENDED"), 6],
    [failure(500, "internal", "internal error"), 1],
  ];
  for (const [response, code] of codes) {
    service.answers.CreateSandbox = () => response.clone();
    expect(await service.run(["create"])).toMatchObject({ code, stdout: "" });
  }
  service.answers.CreateSandbox = () => failure(400, "invalid_argument", "name: too long");
  const { stderr } = await service.run(["create", "--json"]);
  expect(JSON.parse(stderr)).toEqual({
    code: "invalid_argument",
    message: "name: too long",
    status: 400,
    request_id: "req-1",
    details: [],
  });
  service.answers.CreateSandbox = () => Promise.reject(new TypeError("fetch failed"));
  expect((await service.run(["create"])).code).toBe(3);
  expect(await service.run(["frobnicate"])).toMatchObject({ code: 2 });
});

test("help has examples for every command that takes more than a name", async () => {
  const service = new FakeService();
  for (const args of [
    ["--help"],
    ["create", "--help"],
    ["exec", "--help"],
    ["cp", "--help"],
    ["service", "define", "--help"],
    ["store", "set", "--help"],
    ["keys", "create", "--help"],
  ]) {
    const { code, stdout } = await service.run(args);
    expect(code).toBe(0);
    expect(stdout).toMatch(/Examples?:\n {2}\S*\s*.*cloche/);
  }
});

test("token and keys", async () => {
  const service = new FakeService();
  expect((await service.run(["token", "demo"])).stdout).toBe("token\n");
  service.answers.CreateApiKey = () => ({
    key: { id: "key-1", name: "ci", expires_at: "" },
    secret: "s3cret",
  });
  expect((await service.run(["keys", "create", "ci", "--expires-in", "1d"])).stdout).toContain("s3cret");
  expect(service.sent("CreateApiKey")).toEqual({ name: "ci", expires_in_seconds: 86_400 });
  service.answers.ListApiKeys = () => ({
    keys: [{ id: "key-1", name: "ci", prefix: "clk_ab", created_at: "t", expires_at: "", last_used_at: "" }],
  });
  expect((await service.run(["keys", "ls"])).stdout).toContain("key-1");
  service.answers.RevokeApiKey = () => ({});
  expect((await service.run(["keys", "revoke", "key-1"])).stdout).toBe("key-1\n");
});

test("checkpoints by id or name, restore", async () => {
  const service = new FakeService();
  const id = "ckpt-aaaaaaaaaaaaaaaaaaaa";
  service.answers["POST /v1/checkpoint"] = () => ({ checkpoint_id: id, ok: true });
  service.answers["POST /v1/checkpoint/wait"] = () => ({ visible: true, waited_ms: 5 });
  expect((await service.run(["checkpoint", "create", "demo", "--name", "before", "--wait"])).stdout).toBe(
    `${id}\n`,
  );
  expect(service.sent("POST /v1/checkpoint/wait")).toEqual({ checkpoint_id: id });
  service.answers["GET /v1/checkpoint/list"] = () => ({ checkpoints: [{ id, name: "before" }] });
  service.answers["POST /v1/restore"] = () => ({
    ok: true,
    restore_duration_ms: 80,
    started_services: ["web"],
    stopped_services: [],
    failed_services: [],
  });
  expect((await service.run(["restore", "demo", "before"])).stdout).toMatch(
    /restored in +80 ms\nstarted +web\n/,
  );
  expect(service.sent("POST /v1/restore")).toEqual({ checkpoint_id: id });
  expect((await service.run(["restore", "demo", "never"])).code).toBe(4);
  service.answers.ListCheckpoints = () => ({
    checkpoints: [
      { id, name: "before", sandbox_id: sandboxId, created_at: "t", size_human: "1 MiB", visible: true },
    ],
  });
  expect((await service.run(["checkpoint", "ls"])).stdout).toContain("1 MiB");
  service.answers.DeleteCheckpoint = () => ({ freed_bytes: 7 });
  expect(JSON.parse((await service.run(["checkpoint", "rm", id, "--json"])).stdout)).toEqual({
    deleted: [id],
    freed_bytes: 7,
  });
});

test("usage of every page, of a name, and of the id of one that is deleted", async () => {
  const service = new FakeService();
  const usage = (sandbox_id: string) => ({
    sandbox_id,
    compute_seconds: 1.5,
    cpu_seconds: 3,
    memory_mb_seconds: 1536,
    first_ran_at: "2026-01-01T00:00:00.000Z",
    last_ran_at: "2026-01-01T00:00:01.500Z",
  });
  service.answers.GetUsage = ({ text }) => {
    const isFirst = !text.includes("page_token");
    return {
      usage: [usage(isFirst ? sandboxId : otherId)],
      compute_seconds: 3,
      from: "",
      to: "t",
      next_page_token: isFirst ? "more" : "",
    };
  };
  const { stdout } = await service.run(["usage", "--from", "2026-01-01T00:00:00Z"]);
  expect(stdout).toMatch(
    new RegExp(`${sandboxId} +1\\.500 +3\\.000[^]*${otherId} +1\\.500[^]*total +3\\.000`),
  );
  expect(service.sent("GetUsage")).toEqual({ from: "2026-01-01T00:00:00Z", page_token: "more" });
  await service.run(["usage", "demo", "--from", "2h"]);
  expect(service.sent("GetUsage")).toMatchObject({ sandbox_id: sandboxId });
  expect(String(service.sent("GetUsage")["from"])).toMatch(/^\d{4}-.*Z$/);
  const gone = JSON.parse((await service.run(["usage", "sbx-cccccccccccccccccccc", "--json"])).stdout);
  expect(gone).toMatchObject({ compute_seconds: 3, usage: [{ cpu_seconds: 3 }, { cpu_seconds: 3 }] });
  expect((await service.run(["usage", "--from", "yesterday"])).code).toBe(2);
});

test("services from flags, a command line or a file", async () => {
  const service = new FakeService();
  const record = {
    name: "web",
    cmd: "x",
    status: "running",
    pid: 7,
    container: false,
    exit_code: null,
    restarts: 0,
    error: "",
    phase: "",
  };
  service.answers["PUT /v1/services/web"] = () => record;
  const define = async (args: string[], stdin = ""): Promise<Record<string, unknown>> => {
    expect(await service.run(["service", "define", "demo", "web", ...args], stdin)).toMatchObject({
      code: 0,
    });
    return service.sent("PUT /v1/services/web");
  };
  expect(
    await define([
      "--cmd",
      "python3",
      "--arg",
      "-m",
      "--arg",
      "http.server",
      "--health-port",
      "80",
      "--needs",
      "db",
      "--needs",
      "q",
    ]),
  ).toEqual({
    cmd: "python3",
    args: ["-m", "http.server"],
    health_port: 80,
    needs: ["db", "q"],
  });
  expect(await define(["-e", "A=1", "python3", "-m", "http.server"])).toEqual({
    cmd: "python3",
    args: ["-m", "http.server"],
    env: { A: "1" },
  });
  expect(await define(["--image", "redis:7"])).toEqual({ cmd: "", container: true, image: "redis:7" });
  const times = [
    "--start-timeout",
    "5m",
    "--stop-signal",
    "SIGINT",
    "--stop-timeout",
    "30",
    "--no-healthcheck",
  ];
  expect(await define(["--image", "postgres:17", ...times])).toMatchObject({
    healthcheck: false,
    start_timeout_secs: 300,
    stop_signal: "SIGINT",
    stop_timeout_secs: 30,
  });
  expect(await define(["-f", "-", "--restart", "always"], '{"cmd":"a","unknown":1}')).toEqual({
    cmd: "a",
    unknown: 1,
    restart: "always",
  });
  expect((await service.run(["service", "define", "demo", "web"])).code).toBe(2);
  expect((await service.run(["service", "define", "demo", "web", "-f", "-"], "{")).code).toBe(2);

  service.answers["POST /v1/services/web/start"] = () => ({ ...record, status: "failed", error: "exited" });
  expect(await service.run(["service", "start", "demo", "web"])).toMatchObject({
    code: 1,
    stdout: expect.stringContaining("exited") as string,
  });
  service.answers["GET /v1/services"] = () => ({
    services: [{ ...record, status: "unknown", phase: "pulling" }],
  });
  expect((await service.run(["service", "ls", "demo"])).stdout).toContain("unknown (pulling)");
  const pull = { layers_done: 2, layers_total: 5, bytes_done: 3 * 1024 ** 2, bytes_total: 10 * 1024 ** 2 };
  service.answers["GET /v1/services/web"] = () => ({
    ...record,
    status: "unknown",
    phase: "pulling",
    pull: { stage: "fetching", ...pull },
  });
  expect((await service.run(["service", "get", "demo", "web"])).stdout).toMatch(
    /^status +unknown \(pulling: 3 MiB of 10 MiB, 2 of 5 layers\)$/m,
  );
  service.answers["GET /v1/services"] = () => ({
    services: [{ ...record, status: "unknown", phase: "pulling", pull: { stage: "unpacking", ...pull } }],
  });
  expect((await service.run(["service", "ls", "demo"])).stdout).toContain("unknown (unpacking 5 layers)");
  const listed = JSON.parse((await service.run(["service", "ls", "demo", "--json"])).stdout) as {
    services: { pull: object }[];
  };
  expect(listed.services[0]?.pull).toEqual({ stage: "unpacking", ...pull });
  service.answers["GET /v1/services/web/logs"] = ({ query }) => new Response(`log ${query}\n`);
  expect((await service.run(["service", "logs", "demo", "web", "-f", "--tail", "5"])).stdout).toBe(
    "log tail=5&follow=true\n",
  );
  service.answers["POST /v1/services/web/exec"] = () => ({
    stdout: "PONG\n",
    stderr: "",
    exit_code: 4,
    timed_out: false,
  });
  expect(await service.run(["service", "exec", "demo", "web", "redis-cli", "-h", "x"])).toMatchObject({
    code: 4,
    stdout: "PONG\n",
  });
});

test("the store takes JSON or text", async () => {
  const service = new FakeService();
  service.answers["PUT /v1/store/k"] = () => ({ ok: true, expires_at: null });
  await service.run(["store", "set", "demo", "k", '{"a":1}', "--ttl", "5m"]);
  expect(service.sent("PUT /v1/store/k")).toEqual({ value: { a: 1 }, ttl_seconds: 300 });
  await service.run(["store", "set", "demo", "k", "-", "--string"], "text");
  expect(service.sent("PUT /v1/store/k")).toEqual({ value: "text" });
  expect(await service.run(["store", "set", "demo", "k", "text"])).toMatchObject({
    code: 2,
    stderr: expect.stringContaining("--string") as string,
  });
  service.answers["GET /v1/store/k"] = () => ({ value: "text", expires_at: null });
  expect((await service.run(["store", "get", "demo", "k"])).stdout).toBe('"text"\n');
  expect((await service.run(["store", "get", "demo", "k", "--string"])).stdout).toBe("text\n");
  expect((await service.run(["store", "get", "demo", "gone"])).code).toBe(4);
  service.answers["POST /v1/store/batch"] = () => ({ applied: 1, ok: true });
  expect((await service.run(["store", "batch", "demo", "-"], '[{"op":"delete","key":"a"}]')).stdout).toBe(
    "1 applied\n",
  );
});

test("open prints a link", async () => {
  const service = new FakeService();
  service.answers.IssuePortLink = () => ({ url: "https://8080-x/__cloche/link?token=t", expires_at_unix: 1 });
  expect((await service.run(["open", "demo", "8080"])).stdout).toBe("https://8080-x/__cloche/link?token=t\n");
  expect(service.sent("IssuePortLink")).toEqual({ sandbox_id: sandboxId, port: 8080, path: "/" });
});

test("metrics are shown as they are now, or of the last hour", async () => {
  const service = new FakeService();
  const sample = {
    at: "2026-01-01T00:00:10.000Z",
    cpu_share: 0.1234,
    memory_bytes: 64 * 1024 ** 2,
    disk_bytes: 1024 ** 3,
    network_received_bytes: 2_048,
    network_sent_bytes: 0,
    processes: 3,
  };
  const metrics = { now: sample, history: [sample, { ...sample, processes: 4 }] };
  service.answers["GetSandboxMetrics"] = () => metrics;
  const { stdout } = await service.run(["metrics", "demo"]);
  expect(service.sent("GetSandboxMetrics")).toEqual({ id: sandboxId });
  expect(stdout).toMatch(/^cpu +12\.3 %$/m);
  expect(stdout).toMatch(/^memory +64(\.0)? MiB$/m);
  const table = (await service.run(["metrics", "demo", "--history"])).stdout.trim().split("\n");
  expect(table).toHaveLength(3);
  expect(table[2]).toMatch(/^2026-01-01T00:00:10.000Z +12\.3 % .* 4$/);
  expect(JSON.parse((await service.run(["metrics", "demo", "--json"])).stdout)).toEqual(metrics);
});

test("egress is set from words, and shown with what was denied", async () => {
  const service = new FakeService();
  const egress = { mode: "allow", domains: ["*.example.org:443"], cidrs: ["203.0.113.0/24"] };
  service.answers["CreateSandbox"] = () => ({ sandbox: service.sandboxes[0] as object });
  await service.run(["create", "--egress", "*.example.org:443", "--egress", "203.0.113.0/24"]);
  expect(service.sent("CreateSandbox")).toEqual({ egress });

  service.answers["UpdateSandbox"] = () => ({ sandbox: service.sandboxes[0] as object });
  const recent = { destination: "evil.test", protocol: "dns", port: 0, count: 2, last_at: "2026-01-01" };
  service.answers["GetSandboxEgress"] = () => ({
    egress,
    denied_packets: 3,
    denied_names: 2,
    recent_denials: [recent, { ...recent, destination: "1.2.3.4", protocol: "tcp", port: 25 }],
  });
  const shown = await service.run(["egress", "demo", "none"]);
  expect(service.sent("UpdateSandbox")).toEqual({ id: sandboxId, egress: { mode: "none" } });
  expect(shown).toMatchObject({ code: 0, stdout: expect.stringContaining("3 packets, 2 names") });
  expect(shown.stdout).toMatch(/evil\.test +dns +2/);
  expect(shown.stdout).toMatch(/1\.2\.3\.4:25 +tcp +2/);
  expect((await service.run(["egress", "demo", "none", "example.org"])).code).toBe(2);
});

test("audit reads pages up to the limit, of a sandbox by its name too", async () => {
  const service = new FakeService();
  const entry = {
    at: "2026-01-01",
    actor: "key-1",
    action: "sandbox.create",
    subject: sandboxId,
    result: "ok",
  };
  service.answers["ListAuditEntries"] = ({ text }) => ({
    entries: [{ id: "aud-1", request_id: "r", detail: "", ...entry }],
    next_page_token: text.includes("page_token") ? "" : "aud-1",
  });
  const shown = await service.run(["audit", "demo", "-n", "5"]);
  expect(shown).toMatchObject({ code: 0, stdout: expect.stringMatching(/key-1 +sandbox\.create +sbx-/) });
  expect(service.sent("ListAuditEntries")).toEqual({ subject: sandboxId, page_size: 4, page_token: "aud-1" });
  await service.run(["audit", "-n", "1", "--json"]);
  expect(service.sent("ListAuditEntries")).toEqual({ page_size: 1 });
});
