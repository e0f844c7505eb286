import { createServer } from "node:https";
import type { AddressInfo } from "node:net";
import { channelKeyOf, preSharedKeyOf } from "@cloche/base";
import { channel, dataPlaneStatus } from "@cloche/protocol";
import { expect, it } from "vitest";
import { AgentClient } from "./agent-client.ts";

it.each([
  [507, "resource_exhausted", 507],
  [429, "resource_exhausted", 429],
  [409, "failed_precondition", 409],
])("an agent's %i stays what it is for the caller", async (status, code, answered) => {
  const psk = preSharedKeyOf(channelKeyOf("secret"));
  const agent = createServer({ pskCallback: () => psk, ciphers: channel.cipher }, (_request, response) => {
    response.writeHead(status, { "content-type": "application/json" });
    response.end(JSON.stringify({ code, message: "of the agent" }));
  });
  await new Promise<void>((resolve) => agent.listen(0, "127.0.0.1", resolve));
  const { port } = agent.address() as AddressInfo;
  const client = new AgentClient({ agentHost: "127.0.0.1", agentPort: port }, "secret");
  const error = await client.prepareCheckpoint().then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  expect(error).toMatchObject({ code, message: "of the agent" });
  expect(dataPlaneStatus(error as Parameters<typeof dataPlaneStatus>[0])).toBe(answered);
  agent.close();
});
