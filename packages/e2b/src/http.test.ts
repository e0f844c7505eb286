import { once } from "node:events";
import { createServer, request, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { expect, it, onTestFinished } from "vitest";
import { untilAnswered } from "./envd/sandboxes.ts";
import { signalOf } from "./http.ts";

/** A response whose client went away before anybody looked, as while its key is checked. */
async function leftResponse(): Promise<ServerResponse> {
  const server = createServer();
  onTestFinished(() => void server.close());
  await once(server.listen(0, "127.0.0.1"), "listening");
  const call = request({ port: (server.address() as AddressInfo).port }).on("error", () => undefined);
  call.end();
  const [, response] = (await once(server, "request")) as [unknown, ServerResponse];
  call.destroy();
  await once(response, "close");
  return response;
}

it("a client that went away before the work began ends it at once", async () => {
  const response = await leftResponse();
  expect(signalOf(response).aborted).toBe(true);
});

it("what lasts as long as a request ends at once when the client went away before", async () => {
  const response = await leftResponse();
  let ended = 0;
  untilAnswered(response).whenEnded(() => (ended += 1));
  expect(ended).toBe(1);
});
