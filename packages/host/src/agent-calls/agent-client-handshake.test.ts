/** Handshakes of the host's calls: repeated where the agent took no key, and only there. */
import { createServer, type Server } from "node:https";
import type { AddressInfo } from "node:net";
import { channelKeyOf, preSharedKeyOf } from "@cloche/base";
import { channel } from "@cloche/protocol";
import { afterEach, expect, it } from "vitest";
import { AgentClient } from "./agent-client.ts";

const key = (secret: string): Buffer => preSharedKeyOf(channelKeyOf(secret));
let server: Server;
let handshakes = 0;
let requests = 0;
afterEach(() => void server.close());

/** Calls an agent that gives its handshakes `keys`, one after the other; null: it takes none, and says so by alert 40. */
async function activityOf(...keys: (Buffer | null)[]): Promise<unknown> {
  [handshakes, requests] = [0, 0];
  const pskCallback = (): Buffer | null => keys[handshakes++] ?? null;
  server = createServer({ pskCallback, ciphers: channel.cipher }, (_request, response) => {
    requests += 1;
    response.end("{}");
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  return new AgentClient({ agentHost: "127.0.0.1", agentPort: port }, "secret")
    .getActivity()
    .catch((error: unknown) => error);
}

const refused = { code: "unauthenticated", message: expect.stringContaining("does not have the key") };

it("asks an agent again that took no key at first, as one whose clock was set forward", async () => {
  expect(await activityOf(null, key("secret"))).toMatchObject({ openRequests: 0 });
  expect([handshakes, requests]).toEqual([2, 1]);
});

it("asks an agent that takes no key twice, and not for ever", async () => {
  expect(await activityOf(null, null, key("secret"))).toMatchObject(refused);
  expect([handshakes, requests]).toEqual([2, 0]);
});

it("asks an agent that has another key once", async () => {
  expect(await activityOf(key("another"), key("secret"))).toMatchObject(refused);
  expect([handshakes, requests]).toEqual([1, 0]);
});
