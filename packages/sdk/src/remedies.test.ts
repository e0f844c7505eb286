/**
 * What goes wrong most often before anything goes right: each message says what to do, each error has a code.
 */
import { once } from "node:events";
import https from "node:https";
import http from "node:http";
import type { AddressInfo, Server } from "node:net";
import { afterEach, expect, test, vi } from "vitest";
import { Cloche as PlatformCloche } from "./cloche.ts";
import { Cloche, connect } from "./node.ts";
import { requireRuntime } from "./runtime.ts";
import { selfSigned } from "./testing/certificate.ts";
import { FakeService, json, sandboxId } from "./testing/fake-service.ts";

afterEach(() => void vi.unstubAllEnvs());

async function listening(server: Server): Promise<number> {
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return (server.address() as AddressInfo).port;
}
const client = (gatewayUrl: string, more: object = {}): Cloche =>
  connect({ gatewayUrl, apiKey: "k", ...more });

test("without arguments the environment counts; what it lacks is named", async () => {
  await using service = await FakeService.start();
  vi.stubEnv("CLOCHE_HOME", "/nonexistent");
  vi.stubEnv("CLOCHE_EDGE_URL", "");
  for (const Client of [Cloche, PlatformCloche]) {
    for (const name of ["CLOCHE_URL", "CLOCHE_GATEWAY_URL", "CLOCHE_API_KEY"]) vi.stubEnv(name, "");
    const none = expect.objectContaining({ code: "configuration" }) as Error;
    expect(() => new Client()).toThrow(none);
    expect(() => new Client()).toThrow(/npm start.*CLOCHE_URL and CLOCHE_API_KEY/);
    vi.stubEnv("CLOCHE_URL", "localhost:7080");
    vi.stubEnv("CLOCHE_API_KEY", "k");
    expect(() => new Client()).toThrow(/"localhost:7080"; it must be like http:\/\/127\.0\.0\.1:7080/);
    vi.stubEnv("CLOCHE_URL", service.url);
    vi.stubEnv("CLOCHE_API_KEY", "");
    expect(() => new Client()).toThrow(/set CLOCHE_API_KEY to an API key of http/);
    vi.stubEnv("CLOCHE_API_KEY", "from-environment\n");
    await using cloche = new Client();
    await cloche.get(sandboxId);
    expect(service.asked.at(-1)?.headers.authorization).toBe("Bearer from-environment");
  }
});

test("sandboxes of a gateway on the loopback are reached at the plain address that it names, of others at their domains", async () => {
  await using service = await FakeService.start();
  const { CreateSandbox } = service.methods;
  const naming = (url: string) => (message: Record<string, unknown>) => ({
    ...(CreateSandbox?.(message) as object),
    data_plane_url: url,
  });
  service.onData = (_asked, response) => json(response, 200, { stdout: "hi" });
  const asked: string[] = [];
  const fetch = (url: string, init: RequestInit) => {
    asked.push(url.replace(service.url, ""));
    return service.fetch(url, init);
  };
  const urlOf = async (options: object): Promise<string | undefined> => {
    const sandbox = await service.cloche({ fetch, ...options }).create();
    await sandbox.exec(["true"]);
    return asked.at(-1);
  };
  service.methods.CreateSandbox = naming(service.url);
  expect(await urlOf({})).toBe(`/sandboxes/${sandboxId}/v1/exec`);
  const domain = `https://${sandboxId}.cloche.test/v1/exec`;
  expect(await urlOf({ useDomains: true })).toBe(domain);
  // A gateway elsewhere means its own loopback.
  const elsewhere = (url: string, init: RequestInit) =>
    fetch(url.replace("http://gateway.example", service.url), init);
  expect(await urlOf({ gatewayUrl: "http://gateway.example", fetch: elsewhere })).toBe(domain);
  // Nor does a gateway here send a token beyond this machine in the clear.
  service.methods.CreateSandbox = naming("http://127.0.0.1.example");
  expect(await urlOf({})).toBe(domain);
});

test("a gateway that is not there", async () => {
  const closed = http.createServer();
  const port = await listening(closed);
  closed.close();
  await expect(client(`http://127.0.0.1:${port}`).get("x")).rejects.toMatchObject({
    code: "unreachable",
    message: expect.stringMatching(
      new RegExp(`^no answer from 127.0.0.1:${port}: .*REFUSED.*check that the service runs .*CLOCHE_URL`),
    ) as string,
  });
});

test("a gateway that speaks no TLS, or another protocol", async () => {
  await using service = await FakeService.start();
  await expect(client(service.url.replace("http:", "https:")).get("x")).rejects.toMatchObject({
    code: "unreachable",
    message: expect.stringContaining("its address begins with http://") as string,
  });
});

test("a certificate of an authority that is not known, of another name, or of another time", async () => {
  const { cert, key } = await selfSigned("gateway.localhost");
  const server = https.createServer({ cert, key }, (_request, response) => response.end("{}"));
  const port = await listening(server);
  const at = (name: string, more: object = {}) => client(`https://${name}:${port}`, more).get("x");
  await expect(at("a.gateway.localhost")).rejects.toMatchObject({
    code: "untrusted",
    message: expect.stringMatching(
      /self-signed certificate.*; set CLOCHE_CA_CERT to the service's CA file/,
    ) as string,
  });
  await expect(at("a.other.localhost", { caCert: cert })).rejects.toMatchObject({
    code: "untrusted",
    message: expect.stringContaining("check CLOCHE_URL and CLOCHE_BASE_DOMAIN") as string,
  });
  await expect(at("a.gateway.localhost", { caCert: cert })).resolves.toBeDefined();
  server.close();
  server.closeAllConnections();
  const old = await selfSigned("gateway.localhost", new Date("2020-01-02"));
  const expired = https.createServer({ cert: old.cert, key: old.key });
  const oldPort = await listening(expired);
  const late = client(`https://a.gateway.localhost:${oldPort}`, { caCert: old.cert }).get("x");
  await expect(late).rejects.toMatchObject({
    code: "untrusted",
    message: expect.stringMatching(
      /expired.*; set this machine's clock if it is wrong \(it says \d{4}-/,
    ) as string,
  });
  expired.close();
  expired.closeAllConnections();
});

test("a clock that is wrong costs no token its life, and is named where a fresh token is refused", async () => {
  await using service = await FakeService.start();
  const aheadSeconds = 7_200;
  const iat = Math.floor(Date.now() / 1_000) - aheadSeconds;
  const jwt = (): string => `h.${btoa(JSON.stringify({ iat, jti: Math.random() }))}.s`;
  service.methods.IssueDataPlaneToken = () => ({ jwt: jwt(), expires_at_unix: iat + 3_600 });
  const sandbox = await service.cloche().get(sandboxId);
  for (let call = 0; call < 3; call += 1) await sandbox.files.exists("/");
  const issued = (): number => service.asked.filter(({ url }) => url.endsWith("/IssueDataPlaneToken")).length;
  expect(issued()).toBe(1);
  service.onData = (_asked, response) =>
    json(response, 401, { code: "unauthenticated", message: "not yet valid" });
  await expect(sandbox.exec(["true"])).rejects.toThrow(
    /^not yet valid; this machine's clock is 720\d s ahead of the service's; set it$/,
  );
});

test("a runtime that is too old is told in one line", () => {
  const old = {
    process: { versions: { node: "16.20.0" } },
    ReadableStream: () => undefined,
    AbortSignal: {},
  };
  const told = expect.objectContaining({ code: "unsupported_runtime" }) as Error;
  expect(() => requireRuntime(old)).toThrow(told);
  expect(() => requireRuntime(old)).toThrow(
    /^Node 16\.20\.0 is too old for @cloche\/sdk \(it has no fetch, crypto, AbortSignal.any\): use Node 20 or newer, .*$/,
  );
  requireRuntime();
});

test("a command that is a text is sent as it is, never as its letters", async () => {
  await using service = await FakeService.start();
  const sandbox = await service.cloche().create();
  service.onData = (_asked, response) => json(response, 400, { code: "invalid_argument", message: "cmd" });
  const line = "ls -l /" as unknown as string[];
  const calls: (() => Promise<unknown>)[] = [
    () => sandbox.exec(line),
    () => sandbox.execStream(line).next(),
    () => sandbox.execStreamBytes(line).next(),
    () => sandbox.processes.start(line),
    () => sandbox.processes.terminal(line),
    () => sandbox.services.exec("web", line),
  ];
  for (const call of calls) {
    await expect(call()).rejects.toMatchObject({ code: "invalid_argument" });
    expect(service.asked.at(-1)?.body).toContain('"cmd":"ls -l /"');
  }
});

test("a service of this machine is reached whatever proxy the environment names", async () => {
  await using service = await FakeService.start();
  for (const name of ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"])
    vi.stubEnv(name, "socks5://127.0.0.1:9");
  vi.stubEnv("NO_PROXY", "[fd00::]/8");
  vi.stubEnv("NODE_USE_ENV_PROXY", "1");
  await using cloche = client(service.url);
  expect((await cloche.get(sandboxId)).id).toBe(sandboxId);
});
