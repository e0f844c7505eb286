import { once } from "node:events";
import { chmod, mkdtemp, readFile, rm, stat } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { connectionOf, contextInUse } from "../contexts.ts";
import { failure, FakeService } from "../testing/fake-service.ts";

let home = "";
let service: FakeService;
const file = (): string => join(home, "cloche", "contexts.json");
beforeEach(async () => {
  home = await mkdtemp(join(tmpdir(), "cloche-contexts-"));
  service = new FakeService();
  service.env = { XDG_CONFIG_HOME: home };
});
afterEach(() => rm(home, { recursive: true }));

test("login checks the key, keeps it for this user alone, and makes the service the current one", async () => {
  const url = "https://cloche.example.org";
  service.answers.ListSandboxes = () => failure(401, "unauthenticated", "API key is unknown");
  expect(await service.run(["login", url], "wrong\n")).toMatchObject({ code: 5 });
  expect(contextInUse(service.env)).toBeUndefined();
  delete service.answers.ListSandboxes;
  expect(await service.run(["login", url], "secret\n")).toMatchObject({
    code: 0,
    stdout: "cloche.example.org\n",
  });
  expect((await stat(file())).mode & 0o777).toBe(0o600);
  expect((await stat(join(home, "cloche"))).mode & 0o777).toBe(0o700);
  expect(contextInUse(service.env)).toEqual({
    name: "cloche.example.org",
    context: { url, api_key: "secret" },
  });
  service.env["CLOCHE_API_KEY"] = "from-environment";
  await service.run([
    "login",
    "http://127.0.0.1:7080/",
    "--name",
    "here",
    "--edge-url",
    "https://127.0.0.1:7443",
  ]);
  delete service.env["CLOCHE_API_KEY"];
  expect(contextInUse(service.env)).toEqual({
    name: "here",
    context: {
      url: "http://127.0.0.1:7080",
      api_key: "from-environment",
      edge_url: "https://127.0.0.1:7443",
    },
  });
  const listed = await service.run(["context", "ls"]);
  expect(listed.stdout).toMatch(/^\* +here +http:/m);
  expect(listed.stdout + (await service.run(["context", "ls", "--json"])).stdout).not.toContain("secret");
});

test("a key that would go over the network in the clear is told, and a wrong URL or name is refused", async () => {
  expect((await service.run(["login", "http://cloche.example.org"], "k")).stderr).toContain("not encrypted");
  for (const words of [
    ["example.org"],
    ["ftp://example.org"],
    ["https://a", "--name", "local"],
    ["https://a", "--name", "../x"],
  ])
    expect(await service.run(["login", ...words], "k")).toMatchObject({ code: 2 });
  expect(await service.run(["login", "https://a"], "\n")).toMatchObject({ code: 2 });
});

test("context use and logout choose; environment variables go over the context, each over its field", async () => {
  await service.run(["login", "https://one.example.org", "--name", "one"], "k1");
  await service.run(["login", "https://two.example.org", "--name", "two"], "k2");
  expect(await service.run(["context", "use", "three"])).toMatchObject({ code: 4 });
  await service.run(["context", "use", "one"]);
  const named = (env: NodeJS.ProcessEnv): string | undefined =>
    contextInUse({ ...service.env, ...env })?.name;
  expect(named({})).toBe("one");
  expect(named({ CLOCHE_CONTEXT: "two" })).toBe("two");
  expect(named({ CLOCHE_CONTEXT: "two", CLOCHE_HOME: "/x" })).toBe("two");
  expect(named({ CLOCHE_CONTEXT: "local" })).toBeUndefined();
  for (const variable of ["CLOCHE_URL", "CLOCHE_GATEWAY_URL", "CLOCHE_HOME"])
    expect(named({ [variable]: "http://x" })).toBeUndefined();
  expect(() => named({ CLOCHE_CONTEXT: "constructor" })).toThrow(/there is no context "constructor"/);
  const inUse = contextInUse(service.env);
  if (inUse === undefined) throw new Error("no context is in use");
  expect(connectionOf(inUse.context, { CLOCHE_EDGE_URL: "https://edge" })).toMatchObject({ apiKey: "k1" });
  expect(connectionOf(inUse.context, { CLOCHE_API_KEY: "k" })).not.toHaveProperty("apiKey");
  await service.run(["context", "use", "local"]);
  expect(named({})).toBeUndefined();
  await service.run(["context", "use", "one"]);
  expect((await service.run(["logout"])).stdout).toBe("one\n");
  expect(named({})).toBeUndefined();
  expect(await readFile(file(), "utf8")).not.toContain("k1");
  expect(await service.run(["logout"])).toMatchObject({ code: 2 });
});

test("a file that others may read is refused", async () => {
  await service.run(["login", "https://one.example.org"], "k1");
  await chmod(file(), 0o644);
  const { code, stderr } = await service.run(["context", "ls"]);
  expect([code, stderr]).toEqual([3, expect.stringMatching(/others may read it; run: chmod 600/)]);
});

test("status of a service elsewhere needs its URL and a key, and counts what the team has", async () => {
  service.env["CLOCHE_HOME"] = "/nonexistent";
  service.env["CLOCHE_URL"] = "https://cloche.example.org";
  service.env["CLOCHE_API_KEY"] = "k";
  const suspended = { state: "SANDBOX_STATE_SUSPENDED", memory_mb: 4_096 };
  service.sandboxes.push(service.sandbox("sbx-bbbbbbbbbbbbbbbbbbbb", "b", suspended));
  const { code, stdout } = await service.run(["status"]);
  expect(code).toBe(0);
  expect(stdout).toMatch(/^gateway +https:\/\/cloche\.example\.org$/m);
  expect(stdout).toMatch(/^sandboxes +1 running, 1 suspended$/m);
  expect(stdout).toMatch(/^memory +1G and 2 cpus of those that run$/m);
  expect(JSON.parse((await service.run(["status", "--json"])).stdout)).toMatchObject({
    ready: true,
    gateway_url: "https://cloche.example.org",
    sandboxes: { running: 1, suspended: 1 },
    running: { cpus: 2, memory_mb: 1_024 },
    disk_mb: 16_384,
  });
  service.answers.ListSandboxes = () => Promise.reject(new TypeError("fetch failed"));
  expect((await service.run(["status"])).code).toBe(3);
});

test("status of a service elsewhere shows the disk pool by the metrics of its operator's port", async () => {
  service.env["CLOCHE_HOME"] = "/nonexistent";
  service.env["CLOCHE_URL"] = "https://cloche.example.org";
  service.env["CLOCHE_API_KEY"] = "k";
  let text = 'cloche_pool_bytes{kind="total"} 8589934592\ncloche_pool_bytes{kind="available"} 2147483648\n';
  const operator = createServer(({ url }, response) =>
    url === "/metrics" ? response.end(text) : response.writeHead(404).end(),
  );
  await once(operator.listen(0, "127.0.0.1"), "listening");
  const metrics = ["--metrics", `http://127.0.0.1:${(operator.address() as AddressInfo).port}`];
  expect((await service.run(["status", ...metrics])).stdout).toMatch(/^pool +2 GiB free of 8 GiB$/m);
  expect(JSON.parse((await service.run(["status", "--json", ...metrics])).stdout)).toMatchObject({
    sandboxes: { running: 1 },
    pool: { total_bytes: 8_589_934_592, available_bytes: 2_147_483_648 },
  });
  expect((await service.run(["status"])).stdout).not.toMatch(/^pool/m);
  text = "";
  const without = await service.run(["status", ...metrics]);
  expect([without.code, without.stderr]).toEqual([3, expect.stringContaining("shows no disk pool")]);
  operator.close();
  operator.closeAllConnections();
  expect((await service.run(["status", ...metrics])).code).toBe(3);
});
