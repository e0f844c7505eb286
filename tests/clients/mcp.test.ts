// The MCP server against a real service, by the official client: every tool over HTTP and over stdio, cancellation down to the
// process in the sandbox, and what it says to what is wrong.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import type { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import type { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { afterAll, beforeAll, describe, expect, inject, onTestFinished, test } from "vitest";
import { called, connectHttp, connectStdio, refused } from "../fixtures/mcp-client.ts";

const { home, target, env } = inject("service");
const { mcp_url: url } = JSON.parse(readFileSync(join(home, "run/status.json"), "utf8")) as {
  mcp_url: string;
};

interface Exec {
  exit_code: number;
  stdout: string;
  stderr: string;
  timed_out: boolean;
  stdout_bytes: number;
  stdout_truncated: boolean;
}

const connections = {
  "over HTTP, 2026": () => connectHttp(url, target.apiKey, "auto"),
  "over HTTP, 2025": () => connectHttp(url, target.apiKey, "legacy"),
  "over stdio, 2025": () => connectStdio(env, "legacy"),
} as const;

/** Made by tests, and to be gone after them. */
const made: string[] = [];
let keeper: Client;

beforeAll(async () => {
  keeper = await connectHttp(url, target.apiKey);
});
afterAll(async () => {
  await Promise.all(
    made.map((sandbox) => keeper.callTool({ name: "delete_sandbox", arguments: { sandbox } })),
  );
  await keeper.close();
});

async function connected(how: keyof typeof connections): Promise<Client> {
  const client = await connections[how]();
  onTestFinished(() => client.close());
  return client;
}

async function newSandbox(client: Client, fields: Record<string, unknown> = {}): Promise<string> {
  const { id } = await called<{ id: string }>(client, "create_sandbox", fields);
  made.push(id);
  return id;
}

const exec = (
  client: Client,
  sandbox: string,
  command: string | string[],
  more: object = {},
): Promise<Exec> => called<Exec>(client, "exec", { sandbox, command, ...more });

describe.each(Object.keys(connections) as (keyof typeof connections)[])("%s", (how) => {
  test("every tool is listed with words, annotations and schemas, and does what it says", async () => {
    const client = await connected(how);
    const { tools } = await client.listTools();
    const unused = new Set(tools.map(({ name }) => name));
    for (const { name, description, annotations, outputSchema } of tools) {
      expect(description?.length, name).toBeGreaterThan(20);
      expect(annotations, name).toMatchObject({ readOnlyHint: expect.any(Boolean) as boolean });
      expect(outputSchema?.type, name).toBe("object");
    }
    const use: Use = <Answer = Record<string, unknown>>(
      name: string,
      fields: Record<string, unknown> = {},
    ): Promise<Answer> => {
      unused.delete(name);
      return called<Answer>(client, name, fields);
    };
    const use_ = useIn(use);

    const { id } = await use<{ id: string }>("create_sandbox", {
      name: "mcp tools",
      env: { GREETING: "hello" },
    });
    made.push(id);
    const on = use_(id);
    expect(
      (await use<{ sandboxes: { id: string }[] }>("list_sandboxes", { name: "mcp t" })).sandboxes.map(
        (one) => one.id,
      ),
    ).toContain(id);
    expect(await on("get_sandbox")).toMatchObject({ id, state: "running", name: "mcp tools" });

    await commandsAndProcesses(on);
    await files(on);
    await checkpointsAndForks(on, use);
    await services(on);

    expect(await on("store_set", { key: "a/b", value: { n: [1, null] } })).toEqual({ expires_at: null });
    expect(await on("store_get", { key: "a/b" })).toEqual({ value: { n: [1, null] }, expires_at: null });
    expect(await on("store_list", { prefix: "a" })).toMatchObject({ keys: ["a/b"], truncated: false });
    expect(await on("store_delete", { key: "a/b" })).toEqual({ deleted: true });

    await asClientsSend(useIn(use)("mcp tools"));

    expect(await on("suspend_sandbox")).toMatchObject({ state: "suspended" });
    expect(await on("resume_sandbox")).toMatchObject({ state: "running" });
    expect(await on("delete_sandbox")).toEqual({ deleted: true, sandbox: id });
    expect([...unused]).toEqual([]);
  });

  test("a long call tells its progress, and cancelled it ends the process in the sandbox", async () => {
    const client = await connected(how);
    const sandbox = await newSandbox(client);
    const told: (string | undefined)[] = [];
    const cancel = new AbortController();
    const command = "echo first; sleep 1; echo second; exec sleep 4321";
    const call = client.callTool(
      { name: "exec", arguments: { sandbox, command } },
      { signal: cancel.signal, onprogress: ({ message }) => told.push(message) },
    );
    call.catch(() => undefined);
    await expect.poll(() => told, { timeout: 30_000 }).toContain("second");
    expect(await sleepers(sandbox)).toBe(1);
    cancel.abort("enough");
    await expect(call).rejects.toThrow();
    await expect.poll(() => sleepers(sandbox), { timeout: 10_000 }).toBe(0);
    // The server lives on for the next call.
    expect((await exec(client, sandbox, ["echo", "on"])).stdout).toBe("on\n");
  });

  test("a cancelled wait leaves its process alone", async () => {
    const client = await connected(how);
    const sandbox = await newSandbox(client);
    const { process_id: process } = await called<{ process_id: string }>(client, "start_process", {
      sandbox,
      command: ["sleep", "1234"],
    });
    const cancel = new AbortController();
    const wait = client.callTool(
      { name: "wait_for_process", arguments: { sandbox, process } },
      { signal: cancel.signal },
    );
    wait.catch(() => undefined);
    await sleep(500);
    cancel.abort("enough");
    await expect(wait).rejects.toThrow();
    const brief = await called(keeper, "wait_for_process", { sandbox, process, timeout_seconds: 1 });
    expect(brief).toMatchObject({ ended: false, process: { status: "running" } });
  });

  test("resources are listed, completed and read", async () => {
    const client = await connected(how);
    const sandbox = await newSandbox(client);
    await exec(client, sandbox, "printf 'été' > '/root/a b.txt'; printf '\\377' > /root/raw");
    const { resources } = await client.listResources();
    expect(resources.map(({ uri }) => uri)).toContain(`cloche://${sandbox}`);
    const ref = { type: "ref/resource" as const, uri: "cloche://{sandbox}/files/{+path}" };
    const argument = { name: "sandbox", value: sandbox.slice(0, 10) };
    expect((await client.complete({ ref, argument })).completion.values).toContain(sandbox);
    const read = async (path: string): Promise<object | undefined> =>
      (await client.readResource({ uri: `cloche://${sandbox}${path}` })).contents[0];
    expect(await read("")).toMatchObject({ text: expect.stringContaining('"state": "running"') as string });
    expect(await read("/files/root/a%20b.txt")).toMatchObject({ text: "été", mimeType: "text/plain" });
    expect(await read("/files/root/raw")).toMatchObject({ blob: "/w==" });
    const { process_id } = await called(client, "start_process", { sandbox, command: "echo out" });
    await called(client, "wait_for_process", { sandbox, process: process_id });
    expect(await read(`/processes/${String(process_id)}/output`)).toMatchObject({ text: "out\n" });
    await called(client, "set_service", {
      sandbox,
      service: "say",
      cmd: "sh",
      args: ["-c", "echo log; sleep 999"],
    });
    await expect
      .poll(() => read("/services/say/logs"))
      .toMatchObject({ text: expect.stringMatching(/^log$/m) as string });

    await expect(read("/files/root/none")).rejects.toThrow(/not found/i);
    await expect(read("/files/root")).rejects.toThrow(/is a directory; the tool list_files/);
    await exec(client, sandbox, "head -c 1100000 /dev/zero > /root/large");
    await expect(read("/files/root/large")).rejects.toThrow(/1100000 bytes, more than 1048576/);
  });
});

const sleepers = async (sandbox: string): Promise<number> =>
  Number((await exec(keeper, sandbox, "pgrep -fxc 'sleep 4321' || true")).stdout);

describe("a command ends with who runs it", () => {
  test("a `cloche mcp` that is killed", async () => {
    const client = await connected("over stdio, 2025");
    const sandbox = await newSandbox(client);
    const call = client.callTool({ name: "exec", arguments: { sandbox, command: ["sleep", "4321"] } });
    call.catch(() => undefined);
    await expect.poll(() => sleepers(sandbox), { timeout: 30_000 }).toBe(1);
    process.kill((client.transport as StdioClientTransport).pid as number, "SIGKILL");
    await expect.poll(() => sleepers(sandbox), { timeout: 10_000 }).toBe(0);
    await expect(call).rejects.toThrow();
  });

  test("a session over HTTP that its client ends", async () => {
    const client = await connected("over HTTP, 2025");
    const sandbox = await newSandbox(client);
    const call = client.callTool({ name: "exec", arguments: { sandbox, command: ["sleep", "4321"] } });
    call.catch(() => undefined);
    await expect.poll(() => sleepers(sandbox), { timeout: 30_000 }).toBe(1);
    await (client.transport as StreamableHTTPClientTransport).terminateSession();
    await expect.poll(() => sleepers(sandbox), { timeout: 10_000 }).toBe(0);
  });
});

type Use = <Answer = Record<string, unknown>>(
  name: string,
  fields?: Record<string, unknown>,
) => Promise<Answer>;

/** The same, in one sandbox. */
const useIn =
  (use: Use) =>
  (sandbox: string): Use =>
  (name, fields = {}) =>
    use(name, { sandbox, ...fields });

async function commandsAndProcesses(on: Use): Promise<void> {
  expect(
    await on("exec", {
      command: "echo $GREETING $MORE; pwd; cat; exit 3",
      env: { MORE: "you" },
      dir: "/tmp",
      stdin: "in",
    }),
  ).toMatchObject({ exit_code: 3, stdout: "hello you\n/tmp\nin", stderr: "", timed_out: false });
  expect(await on("exec", { command: ["no-such-program"] })).toMatchObject({ exit_code: 127 });
  expect(await on("exec", { command: "sleep 60", timeout_seconds: 0.5 })).toMatchObject({ timed_out: true });
  const large = await on<Exec>("exec", { command: "seq 100000", max_output_bytes: 100 });
  expect(large).toMatchObject({ stdout_bytes: 588_895, stdout_truncated: true });
  expect(large.stdout).toMatch(
    /^1\n2\n[^]*\[… 588795 bytes in the middle are left out …\][^]*99999\n100000\n$/,
  );

  const { process_id: process } = await on("start_process", {
    command: "cat; echo bye >&2",
    stdin: "open",
    tag: "cat",
  });
  expect(await on("write_process_input", { process, text: "ab\n" })).toEqual({
    written_bytes: 3,
    ended: false,
  });
  await expect
    .poll(() => on("read_process_output", { process }))
    .toMatchObject({ text: "ab\n", next: 3, status: "running" });
  expect(await on("write_process_input", { process, text: "cd\n", end: true })).toMatchObject({
    ended: true,
  });
  expect(await on("wait_for_process", { process })).toMatchObject({
    ended: true,
    process: { exit_code: 0, tag: "cat" },
  });
  expect(await on("read_process_output", { process, after: 3 })).toMatchObject({
    text: "cd\n",
    start: 3,
    next: 6,
    lost_bytes: 0,
  });
  expect(await on("read_process_output", { process, max_bytes: 2 })).toMatchObject({ text: "d\n", start: 4 });
  expect(await on("read_process_output", { process, stream: "stderr" })).toMatchObject({ text: "bye\n" });

  const { process_id: sleeper } = await on("start_process", { command: ["sleep", "999"] });
  const { processes } = await on<{ processes: { process_id: string }[] }>("list_processes", {
    status: "running",
  });
  expect(processes.map((one) => one.process_id)).toContain(sleeper);
  await on("signal_process", { process: sleeper, signal: "SIGKILL" });
  expect(await on("wait_for_process", { process: sleeper })).toMatchObject({
    process: { signal: "SIGKILL", exit_code: 137 },
  });
}

/** The sandbox by its name, null for what is not given, line ends as a model sees them, values of the store as JSON text. */
async function asClientsSend(on: Use): Promise<void> {
  const nothing = { dir: null, env: null, user: null, stdin: null, timeout_seconds: null };
  expect(await on("exec", { command: "echo $A", ...nothing, env: ["A=b=c"] })).toMatchObject({
    stdout: "b=c\n",
  });
  expect(await on("exec", { command: "true", ...nothing })).toMatchObject({ exit_code: 0 });
  expect(await on("search_files", { pattern: "x", path: "/etc/hostname", glob: null })).toMatchObject({
    truncated: false,
  });
  expect(await on("list_checkpoints")).toMatchObject({ truncated: false });
  const path = "/root/crlf.txt";
  await on("write_file", { path, content: "a\r\nb\r\nc\r\n", encoding: null, mode: null });
  await on("edit_file", { path, old_text: "a\nb\n", new_text: "x\ny\nz\n", replace_all: null });
  expect(await on("read_file", { path })).toMatchObject({ content: "x\r\ny\r\nz\r\nc\r\n" });
  await on("store_set", { key: "j", value: null, value_json: '{"n": null}' });
  expect(await on("store_get", { key: "j" })).toMatchObject({ value: { n: null } });
  await on("store_set", { key: "j", value: null });
  expect(await on("store_get", { key: "j" })).toMatchObject({ value: null });
}

async function files(on: Use): Promise<void> {
  const path = "/root/app/main.py";
  expect(await on("write_file", { path, content: "x = 1\ny = 1\n", mode: "0755" })).toMatchObject({
    path,
    size_bytes: 12,
    mode: "0755",
  });
  expect(await on("edit_file", { path, old_text: "y = 1", new_text: "y = 2" })).toEqual({
    replacements: 1,
    size_bytes: 12,
  });
  expect(await on("read_file", { path })).toEqual({
    content: "x = 1\ny = 2\n",
    size_bytes: 12,
    offset_bytes: 0,
    next_offset_bytes: null,
  });
  expect(await on("read_file", { path, offset_bytes: 6, max_bytes: 4 })).toMatchObject({
    content: "y = ",
    next_offset_bytes: 10,
  });
  await on("write_file", { path: "/root/app/raw", content: "/wA=", encoding: "base64" });
  expect(await on("read_file", { path: "/root/app/raw", encoding: "base64" })).toMatchObject({
    content: "/wA=",
    size_bytes: 2,
  });
  const { entries } = await on<{ entries: { path: string }[] }>("list_files", { path: "/root", depth: 2 });
  expect(entries.map((one) => one.path)).toEqual(expect.arrayContaining(["/root/app", path]));
  const found = await on("search_files", { path: "/root/app", pattern: "^[xy] = [0-9]$", glob: "*.py" });
  expect(found).toEqual({
    matches: [
      { path, line: 1, text: "x = 1" },
      { path, line: 2, text: "y = 2" },
    ],
    truncated: false,
  });
  const one = await on<{ matches: unknown[] }>("search_files", {
    path: "/root/app",
    pattern: "=",
    max_matches: 1,
  });
  expect(one).toMatchObject({ matches: [{ line: 1 }], truncated: true });
  expect(await on("delete_file", { path: "/root/app/raw" })).toEqual({
    deleted: true,
    path: "/root/app/raw",
  });
}

async function checkpointsAndForks(on: Use, use: Use): Promise<void> {
  const path = "/root/app/main.py";
  const { checkpoint } = await on("create_checkpoint", { name: "before" });
  const listed = await on<{ checkpoints: object[] }>("list_checkpoints");
  expect(listed.checkpoints).toContainEqual(expect.objectContaining({ checkpoint, name: "before" }));
  await on("start_process", { command: "while :; do date +%s%N > /tmp/alive; sleep 0.1; done" });
  const { forks } = await on<{ forks: { id: string; name: string; state: string }[] }>("fork_sandbox", {
    count: 2,
    name: "try",
  });
  made.push(...forks.map(({ id }) => id));
  expect(forks).toMatchObject([
    { name: "try-1", state: "running" },
    { name: "try-2", state: "running" },
  ]);
  // Files and running programs are in each; what one writes, no other sees.
  for (const { id } of forks) {
    const inFork = {
      sandbox: id,
      command: `a=$(cat /tmp/alive); until b=$(cat /tmp/alive); [ "$b" ] && [ "$a" != "$b" ]; do sleep 0.1; done
        cat ${path} && echo ${id} > ${path}`,
      timeout_seconds: 60,
    };
    expect(await use("exec", inFork)).toMatchObject({ stdout: "x = 1\ny = 2\n", exit_code: 0 });
  }
  const fromDisk = await on<{ forks: { id: string }[] }>("fork_sandbox", { checkpoint });
  made.push(...fromDisk.forks.map(({ id }) => id));
  expect(await on("exec", { command: `cat ${path}; rm -r /root/app` })).toMatchObject({
    stdout: "x = 1\ny = 2\n",
  });
  expect(await on("restore_checkpoint", { checkpoint })).toMatchObject({ failed_services: [] });
  expect(await on("read_file", { path })).toMatchObject({ content: "x = 1\ny = 2\n" });
  expect(await use("delete_checkpoint", { checkpoint })).toMatchObject({ deleted: true });
}

async function services(on: Use): Promise<void> {
  const args = ["-c", "echo up; exec python3 -m http.server 8000 --directory /root/app"];
  const web = { service: "web", cmd: "sh", args, health_port: 8000 };
  expect(await on("set_service", web)).toMatchObject({ name: "web", status: "running" });
  expect(await on("list_services")).toMatchObject({ services: [{ name: "web", status: "running" }] });
  await expect
    .poll(() => on("read_service_logs", { service: "web" }))
    .toMatchObject({ text: expect.stringContaining("up") as string });
  expect(await on("exec", { command: "curl -sf http://127.0.0.1:8000/main.py" })).toMatchObject({
    stdout: "x = 1\ny = 2\n",
  });
  const port = await on<{ url: string; public: boolean; link: string }>("open_port", { port: 8000 });
  expect(port).toMatchObject({ public: false, url: expect.stringMatching(/^https:\/\/8000-sbx-/) as string });
  expect(new URL(port.link).host).toBe(new URL(port.url).host);
  expect(await on("open_port", { port: 8000, make_public: true })).toMatchObject({ public: true });
  expect(await on("open_port", { port: 8000, make_public: false })).toMatchObject({ public: false });
  expect(await on("stop_service", { service: "web" })).toMatchObject({ status: "stopped" });
  expect(await on("start_service", { service: "web" })).toMatchObject({ status: "running" });
  expect(await on("delete_service", { service: "web" })).toEqual({ deleted: true, service: "web" });
}

describe("what is wrong is told in words", () => {
  let client: Client;
  let sandbox = "";
  beforeAll(async () => {
    client = await connectHttp(url, target.apiKey);
    sandbox = await newSandbox(client);
  });
  afterAll(() => client.close());

  test("a key that is not known is 401", async () => {
    const headers = { authorization: `Bearer ${target.apiKey}x`, "content-type": "application/json" };
    const answer = await fetch(url, { method: "POST", headers, body: "{}" });
    expect(answer.status).toBe(401);
    expect(answer.headers.get("www-authenticate")).toMatch(/^Bearer/);
    for (const mode of ["legacy", "auto"] as const)
      await expect(connectHttp(url, `${target.apiKey}x`, mode)).rejects.toThrow(
        /API key .* is unknown|HTTP 401/,
      );
  });

  test("another team's sandboxes, checkpoints and processes are not there", async () => {
    const { checkpoint } = await called(client, "create_checkpoint", { sandbox });
    const { process_id: process } = await called(client, "start_process", { sandbox, command: "sleep 99" });
    const stranger = await connectHttp(url, target.otherTeamKey ?? "", "legacy");
    onTestFinished(() => stranger.close());
    const { tools } = await stranger.listTools();
    const given: Record<string, unknown> = {
      sandbox,
      checkpoint,
      process,
      command: "id",
      path: "/etc/passwd",
      port: 80,
      service: "web",
    };
    Object.assign(given, {
      key: "a",
      value: 1,
      text: "a",
      content: "a",
      old_text: "a",
      new_text: "b",
      pattern: "a",
      cmd: "id",
    });
    const ofSandbox = tools.filter(
      ({ name, inputSchema }) => name !== "list_sandboxes" && "sandbox" in (inputSchema.properties ?? {}),
    );
    expect(ofSandbox.length).toBeGreaterThan(25);
    for (const { name, inputSchema } of ofSandbox) {
      const fields = Object.fromEntries(
        ["sandbox", ...(inputSchema.required ?? [])].map((field) => [field, given[field]]),
      );
      expect(await refused(stranger, name, fields), name).toMatch(/^not_found: /);
    }
    expect(await refused(stranger, "delete_checkpoint", { checkpoint })).toMatch(/^not_found: /);
    expect(await refused(stranger, "create_sandbox", { checkpoint })).toMatch(/^not_found: /);
    await expect(stranger.readResource({ uri: `cloche://${sandbox}/files/etc/passwd` })).rejects.toThrow(
      /not found/i,
    );
    const ref = { type: "ref/resource" as const, uri: "cloche://{sandbox}" };
    const completed = await stranger.complete({ ref, argument: { name: "sandbox", value: "sbx-" } });
    expect(completed.completion.values).not.toContain(sandbox);
    expect(await called(client, "get_sandbox", { sandbox })).toMatchObject({ state: "running" });
  });

  test.each([
    [
      "get_sandbox",
      { sandbox: "sbx-1" },
      /^not_found: there is no sandbox with the id or name "sbx-1"; list_sandboxes/,
    ],
    ["get_sandbox", { id: "sbx-1" }, /unknown argument "id"; it takes sandbox/],
    ["exec", { comand: "id", command: "id" }, /unknown argument "comand"; did you mean command\?/],
    ["exec", { command: "id", env: ["A"] }, /env: must be a list of NAME=value/],
    ["store_set", { key: "a" }, /value is missing: give a text as value, or any JSON as value_json/],
    ["store_set", { key: "a", value: "b", value_json: "1" }, /value or value_json, not both/],
    ["store_set", { key: "a", value_json: "{" }, /value_json is no JSON/],
    ["get_sandbox", { sandbox: undefined }, /sandbox: .*expected string/],
    ["exec", { command: "" }, /command/],
    ["exec", { command: "id", timeout_seconds: 4_000 }, /timeout_seconds: .*3600/],
    ["exec", { command: "id", dir: "/none" }, /^invalid_argument: .*dir/],
    ["exec", { command: "id", user: "nobody-here" }, /^invalid_argument: .*user/],
    ["read_file", { path: "etc/passwd" }, /path: must be an absolute path/],
    ["read_file", { path: "/none" }, /^not_found: /],
    ["read_file", { path: "/etc" }, /is a directory; list_files lists it/],
    [
      "read_file",
      { path: "/bin/ls", max_bytes: 1_000 },
      /is not UTF-8 text \(\d+ bytes\); read it with encoding base64/,
    ],
    [
      "read_file",
      { path: "/etc/hostname", offset_bytes: 999_999 },
      /offset_bytes is 999999; .* has \d+ bytes/,
    ],
    ["write_file", { path: "/root/a", content: "no base64", encoding: "base64" }, /content is not base64/],
    ["write_file", { path: "/root/a", content: "x".repeat(1_048_577) }, /^resource_exhausted: /],
    ["write_file", { path: "/root/a", content: "", mode: "rwx" }, /mode: must be octal/],
    [
      "edit_file",
      { path: "/etc/hosts", old_text: "no such words", new_text: "" },
      /old_text is not in \/etc\/hosts; read_file/,
    ],
    [
      "edit_file",
      { path: "/etc/passwd", old_text: "/", new_text: "" },
      /is in \/etc\/passwd \d+ times; give more lines/,
    ],
    ["search_files", { pattern: "(" }, /the search failed: .*grep/],
    ["list_files", { path: "/none" }, /^not_found: /],
    ["delete_file", { path: "/etc" }, /recursive/],
    [
      "write_process_input",
      { process: "proc-aaaaaaaaaaaaaaaaaaaa", text: "a" },
      /^not_found: .*list_processes/,
    ],
    ["signal_process", { process: "1" }, /process: must be the id of a process/],
    ["restore_checkpoint", { checkpoint: "ckpt-aaaaaaaaaaaaaaaaaaaa" }, /^not_found: /],
    ["fork_sandbox", { count: 99 }, /count: .*16/],
    ["start_service", { service: "none" }, /^not_found: /],
    ["set_service", { service: "Web", cmd: "id" }, /service: must be 1 to 63/],
    ["set_service", { service: "web", cmd: "" }, /^invalid_argument: .*cmd/],
    ["open_port", { port: 0 }, /port/],
    ["store_get", { key: "none" }, /^not_found: /],
    ["store_get", { key: ".." }, /store key ".." is not allowed/],
  ] as const)("%s of %o", async (name, fields, words) => {
    expect(await refused(client, name, { sandbox, ...fields })).toMatch(words);
  });

  test("a suspended sandbox is told with what wakes it", async () => {
    const asleep = await newSandbox(client);
    await called(client, "suspend_sandbox", { sandbox: asleep });
    expect(await refused(client, "exec", { sandbox: asleep, command: "id" })).toMatch(
      /SUSPENDED.*resume_sandbox/,
    );
  });

  test("a value of the store that is too large for a model is refused with its size", async () => {
    await called(client, "store_set", { sandbox, key: "large", value: "x".repeat(300_000) });
    expect(await refused(client, "store_get", { sandbox, key: "large" })).toMatch(
      /300002 bytes as JSON, more than 262144/,
    );
  });

  test("a command over stdio that finds no service says how to start one", async () => {
    const nowhere = { PATH: env["PATH"] ?? "", CLOCHE_HOME: "/var/tmp/no-such-home" };
    await expect(connectStdio(nowhere)).rejects.toThrow();
  });
});
