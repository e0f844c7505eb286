// Schemathesis against the running service: each boundary, type and missing field that the OpenAPI documents imply, with the answers held
// against them. What no schema can say is in tests/fixtures/contract-tools.
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, inject, test } from "vitest";
import { contractTools, pythonWithTools, succeeded } from "../fixtures/python-tools.ts";
import { repositoryRoot } from "../fixtures/service.ts";

const { target } = inject("service");
let python = "";
let dataPlane = { url: "", token: "" };
let sandboxId = "";
/** Where it keeps what it found. */
let folder = "";

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), "cloche-schemathesis-"));
  python = await pythonWithTools(join(contractTools, "requirements.txt"));
  const { sandbox, data_plane_token, data_plane_url } = await created();
  sandboxId = sandbox.id;
  dataPlane = { url: `${data_plane_url}/sandboxes/${sandboxId}`, token: data_plane_token };
});

afterAll(async () => {
  rmSync(folder, { recursive: true, force: true });
  await gateway("DeleteSandbox", { id: sandboxId });
});

interface Created {
  sandbox: { id: string };
  data_plane_token: string;
  data_plane_url: string;
}
const created = async (): Promise<Created> => (await gateway("CreateSandbox", {})) as Created;

async function gateway(method: string, fields: object): Promise<unknown> {
  const response = await fetch(`${target.gatewayUrl}/cloche.public.v1.SandboxService/${method}`, {
    method: "POST",
    headers: { authorization: `Bearer ${target.apiKey}`, "content-type": "application/json" },
    body: JSON.stringify(fields),
  });
  expect(response.status).toBe(200);
  return await response.json();
}

/** Its last lines, which say what was found. */
async function tried(document: string, at: { url: string; token: string }, only: string[]): Promise<string> {
  const settings = ["--config-file", join(contractTools, "schemathesis.toml")];
  const words = ["-m", "schemathesis.cli", ...settings, "run", join(repositoryRoot, "spec", document)];
  const bounds = ["--phases", "examples,coverage", "--seed", "1", "--url", at.url, ...only];
  const { PATH } = process.env;
  return await succeeded(python, [...words, ...bounds, "-H", `Authorization: Bearer ${at.token}`], {
    cwd: folder,
    env: {
      PATH,
      PYTHONDONTWRITEBYTECODE: "1",
      SCHEMATHESIS_HOOKS: join(contractTools, "schemathesis-hooks.py"),
      CLOCHE_URL: target.gatewayUrl,
      CLOCHE_API_KEY: target.apiKey,
    },
  });
}

test.each(["exec", "processes", "files", "checkpoints", "services", "store"])(
  "finds nothing in the %s of a sandbox",
  async (tag) => {
    const output = await tried("dataplane.openapi.yaml", dataPlane, ["--include-tag", tag]);
    expect(output).toMatch(/No issues found/);
    expect(Number(/(\d+) generated/.exec(output)?.[1])).toBeGreaterThan(20);
  },
);

/** Apart, so that each is short. */
const large = ["createSandbox", "forkSandbox", "updateSandbox"];
const named = (option: string, ids: readonly string[]): string[] => ids.flatMap((id) => [option, id]);

test.each([
  ["creates", named("--include-operation-id", large.slice(0, 1))],
  ["forks and changes", named("--include-operation-id", large.slice(1))],
  ["other calls", ["--include-tag", "SandboxService", ...named("--exclude-operation-id", large)]],
  ["API keys", ["--include-tag", "ApiKeyService"]],
])("finds nothing in the gateway's %s", async (_what, only) => {
  const at = { url: target.gatewayUrl, token: target.apiKey };
  const output = await tried("gateway.openapi.yaml", at, only);
  expect(output).toMatch(/No issues found/);
  expect(Number(/(\d+) generated/.exec(output)?.[1])).toBeGreaterThan(20);
});
