// The official conformance suite of MCP against the endpoint, for both generations of the protocol. It sends no key, so a relay
// adds one and passes everything else on, Host and Origin too. What cannot pass is listed with its reason in
// tests/fixtures/mcp-expected-failures.yaml; a scenario that fails and is not there fails here, and so does one that is and passes.
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer, request } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { openMcpEndpoint } from "@cloche/mcp/http";
import { Cloche } from "@cloche/sdk";
import { afterAll, beforeAll, expect, inject, onTestFinished, test } from "vitest";
import { exampleServer } from "../fixtures/mcp-example-server.ts";
import { repositoryRoot, runCommand } from "../fixtures/service.ts";

const { home, target } = inject("service");
const { mcp_url } = JSON.parse(readFileSync(join(home, "run/status.json"), "utf8")) as { mcp_url: string };
const suite = join(repositoryRoot, "node_modules/@modelcontextprotocol/conformance/dist/index.js");
const expected = join(repositoryRoot, "tests/fixtures/mcp-expected-failures.yaml");
let folder = "";

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "cloche-mcp-conformance-"));
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** Where requests to `url` are passed on with the team's key. */
async function relayTo(url: string): Promise<string> {
  const { hostname, port, pathname: path } = new URL(url);
  const relay = createServer((incoming, response) => {
    const headers = { ...incoming.headers, authorization: `Bearer ${target.apiKey}` };
    const onward = request({ hostname, port, path, method: incoming.method, headers }, (answer) => {
      response.writeHead(answer.statusCode ?? 502, answer.headers).flushHeaders();
      answer.pipe(response);
    });
    onward.on("error", () => response.destroy());
    response.on("close", () => onward.destroy());
    incoming.pipe(onward);
  });
  await new Promise<void>((resolve) => relay.listen(0, "127.0.0.1", resolve));
  onTestFinished(() => {
    relay.closeAllConnections();
    relay.close();
  });
  return `http://127.0.0.1:${(relay.address() as AddressInfo).port}/mcp`;
}

/** Runs what a revision requires of a server; answers the scenarios that passed whole. Fails where the suite does. */
async function required(url: string, revision: string, more: string[] = []): Promise<(string | undefined)[]> {
  const words = ["server", "--url", await relayTo(url), "--requirements", revision, "-o", folder, ...more];
  const result = await runCommand(process.execPath, [suite, ...words], { cwd: folder });
  expect(result.code, result.stdout + result.stderr).toBe(0);
  return [...result.stdout.matchAll(/^✓ (\S+): [1-9]\d* passed, 0 failed$/gm)].map(([, name]) => name);
}

/** Scenarios of each revision that must pass whole. */
const whole = {
  "2025-11-25": [
    "server-initialize",
    "server-session-lifecycle",
    "ping",
    "tools-list",
    "resources-list",
    "prompts-list",
    "server-sse-multiple-streams",
    "dns-rebinding-protection",
  ],
  "2026-07-28": [
    "tools-list",
    "resources-list",
    "sep-2164-resource-not-found",
    "prompts-list",
    "server-sse-multiple-streams",
    "dns-rebinding-protection",
    "caching",
    "http-header-validation",
    "input-required-result-unsupported-methods",
    "input-required-result-validate-input",
  ],
} as const;

test.each(["2025-11-25", "2026-07-28"] as const)(
  "what %s requires of a server passes, apart from what is listed",
  async (revision) => {
    const passed = await required(mcp_url, revision, ["--expected-failures", expected]);
    // A suite that ran nothing would pass too.
    expect(passed).toEqual(expect.arrayContaining([...whole[revision]]));
  },
);

test("with the suite's own tools, prompts and resources behind it, the endpoint passes all of 2025-11-25", async () => {
  const endpoint = await openMcpEndpoint({
    address: "127.0.0.1",
    port: 0,
    hosts: [],
    keys: {
      clientFor: (apiKey) => new Cloche({ gatewayUrl: target.gatewayUrl, apiKey }),
      teamOf: async () => "one team",
    },
    serverFor: exampleServer,
  });
  onTestFinished(() => endpoint.close(0));
  const passed = await required(`http://127.0.0.1:${endpoint.port}/mcp`, "2025-11-25");
  expect(passed.length).toBeGreaterThanOrEqual(30);
});
