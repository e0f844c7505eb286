// Settings that cannot work are refused by name, before anything is touched.
import { inject, describe, expect, test } from "vitest";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { repositoryRoot, runCommand } from "../fixtures/service.ts";

const { env, home } = inject("service");
const run = join(repositoryRoot, "scripts/run.sh");

describe("a setting that cannot work", () => {
  test.each([
    ["CLOCHE_GATEWAY_PORT", "70000"],
    ["CLOCHE_EDGE_PORT", "https"],
    ["CLOCHE_EDGE_HTTP_PORT", "-1"],
    ["CLOCHE_MCP_PORT", "-1"],
    ["CLOCHE_MCP_HOSTS", "https://mcp.example.com"],
    ["CLOCHE_BASE_DOMAIN", "-not a name-"],
    ["CLOCHE_RUNTIME", "docker"],
    ["CLOCHE_TOKEN_LIFETIME_SECONDS", "0"],
    ["CLOCHE_SUBNET", "10.0.0.0/8"],
    ["CLOCHE_HOME", "relative/path"],
    ["CLOCHE_CONFIG", "/no/such/file.yaml"],
  ])("%s=%s is refused by name", async (name, value) => {
    const elsewhere = { ...env, CLOCHE_HOME: `${home}-never-made`, [name]: value };
    const result = await runCommand("sh", [run, "up", "--detach"], { env: elsewhere });
    expect(result.code).not.toBe(0);
    expect(result.stderr).toContain(name);
    expect(result.stderr).not.toMatch(/\bat .+:\d+:\d+/);
    expect(existsSync(`${home}-never-made`)).toBe(false);
  });
});

describe("the command", () => {
  test("says how it is used", async () => {
    const result = await runCommand("sh", [run, "fly"], { env });
    expect(result.code).toBe(2);
    expect(result.stderr).toContain("usage");
  });

  test("says that nothing runs where nothing does", async () => {
    const elsewhere = { ...env, CLOCHE_HOME: `${home}-never-made` };
    const result = await runCommand("sh", [run, "status", "--json"], { env: elsewhere });
    expect(result.code).not.toBe(0);
    expect(result.stderr).toContain("npm start");
  });

  test("prints a status of the agreed fields", async () => {
    const result = await runCommand("sh", [run, "status", "--json"], { env: { ...env, CLOCHE_HOME: home } });
    expect(result.code, result.stderr).toBe(0);
    const fields = [
      "api_key",
      "base_domain",
      "ca_cert",
      "data_plane_url",
      "edge_url",
      "gateway_url",
      "mcp_url",
      "pid",
      "ready",
      "runtime",
      "version",
    ];
    expect(Object.keys(JSON.parse(result.stdout) as object).sort()).toEqual(expect.arrayContaining(fields));
  });
});
