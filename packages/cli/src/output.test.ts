/**
 * How everything is printed: as JSON for programs where --json says so, in colours for people where there are people.
 */
import type { Command } from "commander";
import { describe, expect, test } from "vitest";
import { createProgram } from "./program.ts";
import { events, failure, FakeService, sandboxId } from "./testing/fake-service.ts";

const processId = "proc-aaaaaaaaaaaaaaaaaaaa";
const info = {
  process_id: processId,
  pid: 7,
  kind: "process",
  cmd: ["a"],
  dir: "",
  user: "root",
  tag: "",
  status: "running",
};
const ended = { ...info, status: "exited", exit_code: 0 };
const service = {
  name: "web",
  cmd: "x",
  status: "running",
  phase: "",
  pid: 1,
  error: "",
  exit_code: null,
  restarts: 0,
};
const checkpoint = { checkpoint_id: "ckpt-aaaaaaaaaaaaaaaaaaaa", ok: true };

/** Each command that ends with an answer, as one would call it; several lines: several ways to call it. */
const calls = `audit
checkpoint create demo
checkpoint ls demo
checkpoint ls
checkpoint wait demo ckpt-aaaaaaaaaaaaaaaaaaaa
checkpoint rm ckpt-aaaaaaaaaaaaaaaaaaaa
create
egress demo
exec demo -- true
exec -d demo -- true
fork demo
get demo
keys create k
keys ls
keys revoke key-a
kill demo proc-a
ls
logs demo
metrics demo
open demo 80
output demo proc-a
ps demo
restore demo ckpt-aaaaaaaaaaaaaaaaaaaa
resume demo
rm demo
run -- true
run --rm -- true
service define demo web -- x
service exec demo web -- x
service get demo web
service logs demo web
service ls demo
service rm demo web
service start demo web
service stop demo web
store batch demo -
store get demo k
store ls demo
store rm demo k
store set demo k 1
suspend demo --no-wait
token demo
top
update demo --name n
usage`.split("\n");

/** Not called here, and why. */
const others: Record<string, string> = {
  attach: "a terminal",
  shell: "a terminal",
  mcp: "speaks JSON to its client, whatever is asked",
  cp: "its own tests",
  watch: "runs until Ctrl-C; its own tests",
  forward: "runs until Ctrl-C; its own tests",
  ssh: "OpenSSH's own client; its own tests",
  "ssh-config": "prints for OpenSSH; its own tests",
  "ssh-proxy": "the bytes of a connection; its own tests",
  completion: "prints a script for a shell",
  up: "the service's machine",
  down: "the service's machine",
  status: "its own tests",
  login: "its own tests",
  logout: "its own tests",
  "context ls": "its own tests",
  "context use": "its own tests",
  "rotate-signing-key": "the service's machine",
  "prune-cache": "the service's machine",
  "take-over": "the service's machine",
  doctor: "the service's machine",
  "orphans adopt": "the service's machine",
  "orphans delete": "the service's machine",
  "teams create": "the service's machine",
  gateway: "the service's machine",
  edge: "the service's machine",
  host: "the service's machine",
  "join-token": "the service's machine",
  hosts: "the service's machine",
  cordon: "the service's machine",
  uncordon: "the service's machine",
  drain: "the service's machine",
  forget: "the service's machine",
  "backup create": "the service's machine",
  "backup restore": "the service's machine",
};

function answering(): FakeService {
  const fake = new FakeService();
  fake.answers.SuspendSandbox = () => ({
    sandbox: fake.sandbox(sandboxId, "demo", { state: "SANDBOX_STATE_SUSPENDED" }),
  });
  fake.answers.ForkSandbox = () => ({ sandbox: fake.sandbox(sandboxId, "fork"), data_plane_token: "" });
  const json: Record<string, unknown> = {
    ListAuditEntries: { entries: [], next_page_token: "" },
    ListCheckpoints: { checkpoints: [] },
    DeleteCheckpoint: { freed_bytes: 1 },
    GetSandboxEgress: { egress: { mode: "open", domains: [], cidrs: [] }, recent_denials: [] },
    CreateApiKey: { key: {}, secret: "s" },
    ListApiKeys: { keys: [] },
    RevokeApiKey: {},
    GetUsage: { usage: [], compute_seconds: 0, from: "", to: "", next_page_token: "" },
    GetSandboxMetrics: { now: { at: "" }, history: [] },
    IssuePortLink: { url: "u", expires_at_unix: 1 },
    "POST /v1/checkpoint": checkpoint,
    "GET /v1/checkpoint/list": { checkpoints: [], cursor: "" },
    "POST /v1/checkpoint/wait": { visible: true, ok: true },
    "POST /v1/restore": { ok: true },
    "POST /v1/exec": { stdout: "", stderr: "", exit_code: 0, ok: true },
    "POST /v1/processes": info,
    "GET /v1/processes": { processes: [info] },
    [`GET /v1/processes/${processId}`]: info,
    [`DELETE /v1/processes/${processId}`]: ended,
    "GET /v1/services": { services: [service] },
    "GET /v1/services/web": service,
    "PUT /v1/services/web": service,
    "DELETE /v1/services/web": { ok: true },
    "POST /v1/services/web/start": service,
    "POST /v1/services/web/stop": service,
    "POST /v1/services/web/exec": { stdout: "", stderr: "", exit_code: 0 },
    "POST /v1/store/batch": { applied: 0, ok: true },
    "GET /v1/store": { keys: [], truncated: false },
    "GET /v1/store/k": { value: 1 },
    "PUT /v1/store/k": { ok: true },
    "DELETE /v1/store/k": { deleted: true },
  };
  for (const [name, body] of Object.entries(json)) fake.answers[name] = () => body as object;
  fake.answers[`GET /v1/processes/${processId}/output`] = ({ query }) =>
    query.has("follow")
      ? events(
          ["stdout", { offset: 0, data: btoa("out\n") }],
          ["stderr", { offset: 0, data: btoa("err\n") }],
          ["exit", ended],
        )
      : new Response("out\n");
  fake.answers["GET /v1/services/web/logs"] = () => new Response("log\n");
  return fake;
}

const leavesOf = (command: Command, path: string[] = []): string[] =>
  command.commands.length === 0
    ? [path.join(" ")]
    : command.commands.flatMap((child) => leavesOf(child, [...path, child.name()]));

describe("--json", () => {
  test.each(calls)("%s prints one JSON value", async (call) => {
    const { code, stdout, stderr } = await answering().run(
      [...call.split(" ").slice(0, 1), "--json", ...call.split(" ").slice(1)],
      "[]",
    );
    expect([code, stderr]).toEqual([0, ""]);
    expect(JSON.parse(stdout)).toEqual(expect.anything());
  });

  test("is known by every command", () => {
    const terminal = {} as Parameters<typeof createProgram>[0]["terminal"];
    const leaves = leavesOf(createProgram({ terminal, setExitCode: () => undefined }).program);
    const called = (leaf: string): boolean => calls.some((call) => `${call} `.startsWith(`${leaf} `));
    expect(leaves.filter((leaf) => !called(leaf) && others[leaf] === undefined)).toEqual([]);
    expect(Object.keys(others).filter((name) => !leaves.includes(name))).toEqual([]);
  });

  test("of what goes on is one value a line, and stands with nothing that it cannot be", async () => {
    const { stdout } = await answering().run(["output", "demo", "proc-a", "-f", "--json"]);
    expect(
      stdout
        .trim()
        .split("\n")
        .map((line) => JSON.parse(line) as object),
    ).toEqual([
      { type: "stdout", offset: 0, data: "out\n" },
      { type: "stderr", offset: 0, data: "err\n" },
      { type: "exit", process: ended },
    ]);
    const logs = await answering().run(["service", "logs", "demo", "web", "-f", "--json"]);
    expect(JSON.parse(logs.stdout)).toEqual({ log: "log\n" });
    for (const call of [["shell", "demo"], ["attach", "demo", "proc-a"], ["cp", "demo:/a", "-"], ["up"]])
      expect(await answering().run([...call, "--json"])).toMatchObject({ code: 2, stdout: "" });
  });
});

describe("colours", () => {
  const seen = async (set: Partial<FakeService>, words: string[]): Promise<string> => {
    const fake = Object.assign(answering(), set);
    fake.answers.GetSandbox = () => failure(404, "not_found", "none");
    const { stdout, stderr } = await fake.run(words);
    return stdout + stderr;
  };
  const people = { isTerminal: true, isOutputTerminal: true };

  test("are there for people at a terminal: headings, states, errors", async () => {
    expect(await seen(people, ["ls"])).toMatch(/^\x1b\[1mID\x1b\[0m {2,}.*\x1b\[32mrunning\x1b\[0m {2}\d+d/s);
    expect(await seen(people, ["get", sandboxId])).toMatch(/^\x1b\[31mcloche:\x1b\[0m none/);
  });

  test("are nowhere else, and change no column", async () => {
    const plain = await seen({}, ["ls"]);
    expect(plain).not.toContain("\x1b");
    expect((await seen(people, ["ls"])).replaceAll(/\x1b\[\d+m/g, "")).toBe(plain);
    for (const env of [{ NO_COLOR: "1" }, { TERM: "dumb" }])
      expect(await seen({ ...people, env }, ["ls"])).toBe(plain);
    expect(await seen(people, ["ls", "--json"])).not.toContain("\x1b");
  });
});
