// A start that fails where nothing ran before is undone: its pool, network and machines are off the machine again.
import { type AddressInfo, createServer } from "node:net";
import { once } from "node:events";
import { expect, inject, onTestFinished, test } from "vitest";
import { emptyInventory, inventory } from "../fixtures/inventory.ts";
import { TestService } from "../fixtures/service.ts";

const { env } = inject("service");

async function failsToStart(settings: Record<string, string>, problem: RegExp): Promise<TestService> {
  const service = await TestService.create(settings);
  onTestFinished(async () => expect(await service.destroy()).toEqual([]));
  const { code, stderr } = await service.command(["up", "--detach"], { deadlineMs: 120_000 });
  expect(code).toBe(1);
  expect(stderr).toMatch(problem);
  expect(stderr).not.toMatch(/\bat .+:\d+:\d+/);
  expect(inventory(service.home)).toEqual(emptyInventory);
  return service;
}

test("with a subnet that is another service's", async () => {
  const service = await failsToStart({ CLOCHE_SUBNET: env["CLOCHE_SUBNET"] ?? "" }, /CLOCHE_SUBNET/);
  // Nothing of it runs, and to stop it fails for the same reason: that leaves nothing either.
  await service.stop();
  expect(inventory(service.home)).toEqual(emptyInventory);
});

test("with a port that another program has", async () => {
  const other = createServer().listen(0, "127.0.0.1");
  await once(other, "listening");
  onTestFinished(() => void other.close());
  const { port } = other.address() as AddressInfo;
  await failsToStart({ CLOCHE_EDGE_HTTP_PORT: String(port) }, /CLOCHE_EDGE_HTTP_PORT/);
  await failsToStart({ CLOCHE_MCP_PORT: String(port) }, /CLOCHE_MCP_PORT/);
  const service = await failsToStart({ CLOCHE_EDGE_PORT: String(port) }, /CLOCHE_EDGE_PORT/);
  other.close();
  service.env["CLOCHE_MCP_PORT"] = "0";
  await service.start();
  expect(service.status.mcp_url).toBeUndefined();
});
