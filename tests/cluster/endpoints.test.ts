// The endpoints for E2B's clients and for MCP of gateways: the same key and the same tokens at each of them.
import { Sandbox } from "e2b";
import { expect, it } from "vitest";
import { called, connectHttp } from "../fixtures/mcp-client.ts";
import { E2B_PORT, MCP_PORT } from "../lab/roles.ts";
import { theCluster } from "./cluster.ts";

const cluster = theCluster();
const { lab } = cluster;

async function statusOf(gateway: string): Promise<{ api_key: string; e2b: { api_key: string } }> {
  const text = await lab.command(["status", "--json"], gateway);
  return JSON.parse(text) as Awaited<ReturnType<typeof statusOf>>;
}

/** As E2B's clients are told of a gateway. */
const e2bOf = (gateway: string, apiKey: string) => {
  const url = `http://${lab.address(gateway)}:${E2B_PORT}`;
  return { apiUrl: url, sandboxUrl: url, apiKey };
};

it("serve E2B's client at any gateway", async () => {
  const [first, second] = await Promise.all([statusOf("g1"), statusOf("g2")]);
  const key = first.e2b.api_key;
  expect(key).toMatch(/^e2b_[0-9a-f]{40}$/);
  expect(second.e2b.api_key).toBe(key);
  const made = await Sandbox.create({ ...e2bOf("g1", key), timeoutMs: 300_000 });
  await made.files.write("/home/user/note", "from the first");
  const again = await Sandbox.connect(made.sandboxId, e2bOf("g2", key));
  expect((await again.commands.run("cat note")).stdout).toBe("from the first");
  // Its token is sealed with what the gateways share.
  const other = await Sandbox.connect(made.sandboxId, e2bOf("g1", key));
  expect(other["envdAccessToken"]).toBe(again["envdAccessToken"]);
  await made.kill();
});

it("serve MCP over HTTP", async () => {
  const { api_key: key } = await statusOf("g2");
  const client = await connectHttp(`http://${lab.address("g2")}:${MCP_PORT}/mcp`, key);
  try {
    expect((await client.listTools()).tools.length).toBeGreaterThan(20);
    const { id: sandbox } = await called<{ id: string }>(client, "create_sandbox", { memory_mb: 256 });
    const { stdout } = await called<{ stdout: string }>(client, "exec", { sandbox, command: "echo inside" });
    expect(stdout).toBe("inside\n");
    await called(client, "delete_sandbox", { sandbox });
  } finally {
    await client.close();
  }
});
