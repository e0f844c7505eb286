// The address of all sandboxes, without TLS: what stock clients do there, which know neither the service's names nor its authority.
import http from "node:http";
import { join } from "node:path";
import { afterAll, beforeAll, expect, inject, test } from "vitest";
import { AttachClient } from "../../packages/agent/src/testing/attach-client.ts";
import type { TestSandbox } from "../conformance/session.ts";
import { sharedClient } from "../fixtures/client.ts";
import { repositoryRoot, runCommand, type Status } from "../fixtures/service.ts";

const { env, home, target } = inject("service");
const client = sharedClient();
let sandbox: TestSandbox;
let dataPlane = "";

beforeAll(async () => {
  const made = await client.gateway<{
    sandbox: { id: string; domain: string };
    data_plane_token: string;
    data_plane_url: string;
  }>("CreateSandbox");
  sandbox = { id: made.sandbox.id, domain: made.sandbox.domain, token: made.data_plane_token };
  dataPlane = made.data_plane_url;
  const server = "python3 -m http.server 9000 --bind 127.0.0.1";
  await client.shell(
    sandbox,
    `mkdir -p /srv/folder && cd /srv && echo inside > folder/inside.txt && (${server} > /dev/null 2>&1 &)
     until python3 -c 'import socket; socket.create_connection(("127.0.0.1", 9000))' 2>/dev/null; do sleep 0.1; done`,
  );
});
afterAll(() => client.gateway("DeleteSandbox", { id: sandbox.id }));

const address = (): string => `${dataPlane}/sandboxes/${sandbox.id}`;
const bearer = (): { authorization: string } => ({ authorization: `Bearer ${sandbox.token}` });

test("every answer with a token names the address, and so does the status", async () => {
  expect(dataPlane).toMatch(/^http:\/\/127\.0\.0\.1:\d+$/);
  const issued = await client.gateway<object>("IssueDataPlaneToken", { sandbox_id: sandbox.id });
  expect(issued).toMatchObject({ jwt: expect.any(String), data_plane_url: dataPlane });
  const forked = await client.gateway<{ sandbox: { id: string } }>("ForkSandbox", {
    source_sandbox_id: sandbox.id,
  });
  expect(forked).toMatchObject({ data_plane_token: expect.any(String), data_plane_url: dataPlane });
  await client.gateway("DeleteSandbox", { id: forked.sandbox.id });
  const run = join(repositoryRoot, "scripts/run.sh");
  const status = await runCommand("sh", [run, "status", "--json"], { env: { ...env, CLOCHE_HOME: home } });
  expect((JSON.parse(status.stdout) as Status).data_plane_url).toBe(dataPlane);
});

test("node's fetch executes, writes, reads and reaches a port", async () => {
  const post = { method: "POST", headers: bearer() };
  const ran = await fetch(`${address()}/v1/exec`, { ...post, body: '{"cmd":["echo","hi"]}' });
  expect(await ran.json()).toMatchObject({ stdout: "hi\n", ok: true });
  const written = await fetch(`${address()}/v1/files?path=/root/a.txt`, { ...post, body: "from fetch" });
  expect(written.status).toBe(200);
  const headers = { ...bearer(), "x-sandbox-id": sandbox.id };
  expect(await (await fetch(`${dataPlane}/v1/files?path=/root/a.txt`, { headers })).text()).toBe(
    "from fetch",
  );
  const port = await fetch(`${address()}/ports/9000/folder`, { headers: bearer() });
  expect([port.redirected, port.url]).toEqual([true, `${address()}/ports/9000/folder/`]);
  expect(await port.text()).toContain("inside.txt");
  const streamed = await fetch(`${address()}/v1/exec`, {
    ...post,
    headers: { ...bearer(), accept: "text/event-stream" },
    body: '{"cmd":["sh","-c","echo one; echo two"]}',
  });
  expect(await streamed.text()).toMatch(/event: exit/);
  const checkpoints = await fetch(`${address()}/v1/checkpoint/list`, { headers: bearer() });
  expect(await checkpoints.json()).toMatchObject({ checkpoints: [] });
});

test("curl does too, and trusts the certificate for localhost and 127.0.0.1", async () => {
  const curl = async (url: string, ...more: string[]): Promise<string> => {
    const words = [
      "--noproxy",
      "*",
      "-sS",
      "--fail-with-body",
      "-H",
      `Authorization: Bearer ${sandbox.token}`,
    ];
    const result = await runCommand("curl", [...words, ...more, url]);
    expect(result.code, result.stdout + result.stderr).toBe(0);
    return result.stdout;
  };
  const body = ["-d", '{"cmd":["id","-un"]}'];
  expect(JSON.parse(await curl(`${address()}/v1/exec`, ...body))).toMatchObject({ stdout: "root\n" });
  expect(await curl(`${address()}/ports/9000/folder/inside.txt`)).toBe("inside\n");
  await curl(`${address()}/v1/files?path=/root/curl.txt`, "-H", "Expect: 100-continue", "--data-binary", "c");
  const ca = ["--cacert", join(home, "tls", "ca.pem")];
  for (const host of ["localhost", "127.0.0.1"]) {
    const secure = `https://${host}:${target.edgePort}/sandboxes/${sandbox.id}`;
    expect(await curl(`${secure}/v1/files?path=/root/curl.txt`, ...ca)).toBe("c");
  }
});

test("Python's requests does the whole round", async () => {
  const settings = { CLOCHE_DATA_PLANE: dataPlane, CLOCHE_SANDBOX: sandbox.id, CLOCHE_TOKEN: sandbox.token };
  const script = join(repositoryRoot, "tests/fixtures/plain-client.py");
  const result = await runCommand("python3", [script], { env: { ...env, ...settings } });
  expect(result.code, result.stdout + result.stderr).toBe(0);
  expect(result.stdout).toContain("all done\n");
});

test("a terminal is attached to over a WebSocket without TLS", async () => {
  const json = JSON.stringify({ cmd: ["sh"], tty: { cols: 80, rows: 24 } });
  const made = await fetch(`${address()}/v1/processes`, { method: "POST", headers: bearer(), body: json });
  expect(made.status).toBe(201);
  const { process_id: processId } = (await made.json()) as { process_id: string };
  const attached = await AttachClient.to(Number(new URL(dataPlane).port), {
    path: `/sandboxes/${sandbox.id}/v1/processes/${processId}/attach`,
    host: new URL(dataPlane).host,
    headers: bearer(),
  });
  expect(attached.head).toMatch(/^HTTP\/1\.1 101 /);
  attached.send(0, "echo $((6*7))x; exit 3\n");
  await attached.until("its output", () => attached.text(1).includes("42x"));
  await attached.until("its end", () => attached.status.some(({ exit_code: code }) => code === 3));
  attached.cut();
});

test("a token that is not the sandbox's is refused as at its own domain", async () => {
  const other = await client.create();
  const expected = { code: "unauthenticated" };
  for (const token of [undefined, "x", other.token, target.apiKey]) {
    const headers: Record<string, string> = token === undefined ? {} : { authorization: `Bearer ${token}` };
    const own = await client.call(sandbox, "POST", "/v1/exec", {
      json: { cmd: ["true"] },
      headers: { authorization: "", ...headers },
    });
    const calls: [string, Record<string, string>][] = [
      [`${address()}/v1/exec`, headers],
      [`${dataPlane}/v1/exec`, { ...headers, "x-sandbox-id": sandbox.id }],
      [`${address()}/ports/9000/`, headers],
      [`${address()}/v1/checkpoint`, headers],
    ];
    for (const [url, sent] of calls) {
      const answer = await fetch(url, { method: "POST", headers: sent, body: '{"cmd":["true"]}' });
      expect([url, answer.status]).toEqual([url, own.status]);
      expect(answer.headers.get("www-authenticate")).toBe("Bearer");
      expect(await answer.json()).toMatchObject(expected);
    }
  }
});

test("a request under another name for this machine is refused", async () => {
  const { hostname, port } = new URL(dataPlane);
  const ask = (host: string): Promise<number | undefined> =>
    new Promise((resolve, reject) => {
      const path = `/sandboxes/${sandbox.id}/v1/store`;
      const headers = { host, ...bearer() };
      http
        .get({ hostname, port, path, headers, agent: false }, (answer) => {
          answer.resume();
          resolve(answer.statusCode);
        })
        .on("error", reject);
    });
  expect(await ask("localhost")).toBe(200);
  expect(await ask(`[::1]:${port}`)).toBe(200);
  for (const host of ["rebound.example", `rebound.example:${port}`, "localhost.example"])
    expect([host, await ask(host)]).toEqual([host, 404]);
});
