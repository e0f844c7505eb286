/**
 * What a sandbox or another member of the team wrote reaches the terminal: no command may let it steer the terminal or forge a line.
 */
import { expect, test } from "vitest";
import { events, failure, FakeService, otherId, sandboxId } from "./testing/fake-service.ts";

const evil = "a\x1b]0;owned\x07\x9b2J\x7f\u202eb\r\ncloche: forged";
const escaped = String.raw`a\x1b]0;owned\x07\x9b2J\x7f\u202eb\r\ncloche: forged`;

const ckptId = "ckpt-aaaaaaaaaaaaaaaaaaaa";

const service = (): FakeService => {
  const fake = new FakeService();
  fake.isTerminal = true;
  fake.isOutputTerminal = true;
  fake.env = { NO_COLOR: "1" };
  const hostile = { error_message: evil, metadata: { [evil]: evil }, expires_at: "", runtime: evil };
  fake.sandboxes = [
    fake.sandbox(sandboxId, "demo", hostile),
    fake.sandbox(otherId, evil, { ...hostile, state: "SANDBOX_STATE_ERROR" }),
  ];
  const ckpt = { id: ckptId, name: evil, sandbox_id: evil, created_at: evil, size_human: evil };
  const web = {
    name: evil,
    cmd: evil,
    status: "running",
    phase: "",
    pid: 1,
    error: evil,
    exit_code: null,
    restarts: 0,
  };
  const one = {
    process_id: "proc-1",
    pid: 1,
    kind: "process",
    status: "exited",
    ended_by: evil,
    signal: evil,
    started_at: evil,
    tag: evil,
    cmd: [evil],
    tty: null,
    stdin: "closed",
  };
  const egress = { mode: "allow", domains: [evil], cidrs: [] };
  const denial = { destination: evil, protocol: evil, port: 1, count: 1, last_at: evil };
  const key = { id: evil, name: evil, prefix: evil, created_at: evil, expires_at: evil, last_used_at: evil };
  const entry = { at: evil, actor: evil, action: evil, subject: evil, result: evil, detail: evil };
  const sample = { at: evil, cpu_share: 1, memory_bytes: 1, disk_bytes: 1, network_received_bytes: 1 };
  const metrics = { ...sample, network_sent_bytes: 1, processes: 1 };
  const used = { sandbox_id: evil, name: evil, compute_seconds: 1, cpu_seconds: 1, first_ran_at: evil };
  const watched = { type: "created", path: evil, entry_type: "file" };
  Object.assign(fake.answers, {
    GetSandboxEgress: () => ({ egress, denied_packets: 1, denied_names: 1, recent_denials: [denial] }),
    GetSandboxMetrics: () => ({ now: metrics, history: [metrics] }),
    ListCheckpoints: () => ({ checkpoints: [ckpt], next_page_token: "" }),
    ListApiKeys: () => ({ keys: [key] }),
    CreateApiKey: () => ({ key, secret: evil }),
    ListAuditEntries: () => ({ entries: [entry], next_page_token: "" }),
    GetUsage: () => ({ usage: [{ ...used, last_ran_at: evil }], compute_seconds: 1, next_page_token: "" }),
    IssuePortLink: () => ({ url: evil, expires_at_unix: 1 }),
    "GET /v1/processes": () => ({ processes: [one] }),
    "GET /v1/services": () => ({ services: [web] }),
    "GET /v1/services/web": () => web,
    "GET /v1/services/web/logs": () => new Response(evil),
    "POST /v1/services/web/start": () => web,
    "GET /v1/store": () => ({ keys: [evil], next_after: "" }),
    "GET /v1/store/k": () => ({ value: evil }),
    "GET /v1/files/watch": () => events(["change", watched]),
    "POST /v1/restore": () => ({ started_services: [evil], stopped_services: [], failed_services: [evil] }),
    "GET /v1/checkpoint/list": () => ({ checkpoints: [ckpt] }),
    "GET /v1/files/exists": () => ({ exists: false }),
    "POST /v1/exec": () => failure(400, "invalid_argument", evil),
  });
  return fake;
};

const commands: string[][] = [
  ["ls"],
  ["ls", "-o", "wide"],
  ["get", "demo"],
  ["get", evil],
  ["get", "nobody" + evil],
  ["egress", "demo"],
  ["metrics", "demo"],
  ["metrics", "demo", "--history"],
  ["checkpoint", "ls"],
  ["restore", "demo", ckptId],
  ["keys", "ls"],
  ["keys", "create", "x"],
  ["audit"],
  ["usage"],
  ["open", "demo", "80"],
  ["ps", "demo", "-a"],
  ["kill", "demo", evil],
  ["service", "ls", "demo"],
  ["service", "get", "demo", "web"],
  ["service", "start", "demo", "web"],
  ["service", "logs", "demo", "web"],
  ["store", "ls", "demo"],
  ["store", "get", "demo", "k"],
  ["store", "get", "demo", "k", "--string"],
  ["exec", "demo", "true"],
  ["cp", `demo:/${evil}`, "/tmp"],
  ["resume", evil],
  ["ssh-config"],
];

/** Their answers hold nothing of others. */
const saysNothing = new Set(["kill", "ssh-config", "cp"]);

test.each(commands.map((words) => [words.join(" ").replaceAll(evil, "EVIL"), words]))(
  "%s",
  async (_, words) => {
    // A log and a text are lines of the sandbox's own.
    const isText = words[1] === "logs" || words.at(-1) === "--string";
    for (const more of [[], ["--json"]]) {
      const { stdout, stderr } = await service().run([...words, ...more]);
      // The progress line's own sequence may stay.
      const printed = `${stdout}${stderr.replaceAll("\r\x1b[K", "")}`;
      expect(printed.replaceAll(isText ? /\r?\n/g : "\n", "")).not.toMatch(/[\p{Cc}\u202e]/u);
      if (!saysNothing.has(words[0] ?? "")) expect(printed).toContain("owned");
      const lines = printed.split("\n").filter((line) => line.startsWith("cloche: forged"));
      if (!isText) expect(lines).toEqual([]);
    }
  },
);

test("the text is there, escaped, and JSON keeps its value", async () => {
  expect((await service().run(["ls"])).stdout).toContain(escaped);
  const { sandboxes } = JSON.parse((await service().run(["ls", "--json"])).stdout) as {
    sandboxes: { name: string }[];
  };
  expect(sandboxes[1]?.name).toBe(evil);
});

test("a log is escaped for a terminal only, and keeps its colours there", async () => {
  const fake = service();
  fake.answers["GET /v1/services/web/logs"] = () => new Response("\x1b[32mok\x1b[0m \x1b[2J\n");
  expect((await fake.run(["service", "logs", "demo", "web"])).stdout).toBe("\\x1b[32mok\\x1b[0m \\x1b[2J\n");
  fake.env = {};
  expect((await fake.run(["service", "logs", "demo", "web"])).stdout).toBe(
    "\x1b[32mok\x1b[0m \\x1b[2J\n\x1b[0m",
  );
  fake.isOutputTerminal = false;
  expect((await fake.run(["service", "logs", "demo", "web"])).stdout).toBe("\x1b[32mok\x1b[0m \x1b[2J\n");
});
