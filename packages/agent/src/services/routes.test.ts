import { once } from "node:events";
import { createServer, type IncomingMessage, request, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { expect, it, onTestFinished } from "vitest";
import { Exchange } from "../http/exchange.ts";
import type { ContainerExecParts } from "./container-exec.ts";
import { serviceRoutes } from "./routes.ts";
import type { Supervisor } from "./supervisor.ts";

it("a log is followed no longer for a client that left while its end was looked for", async () => {
  const server = createServer();
  onTestFinished(() => void server.close());
  await once(server.listen(0, "127.0.0.1"), "listening");
  const call = request({ port: (server.address() as AddressInfo).port }).on("error", () => undefined);
  call.end();
  const [asked, response] = (await once(server, "request")) as [IncomingMessage, ServerResponse];
  let isFollowed = false;
  const log = {
    start: 0,
    tailPosition: async () => {
      call.destroy();
      await once(response, "close");
      return 0;
    },
    async *read(_position: number, _follow: boolean, signal: AbortSignal) {
      isFollowed = !signal.aborted;
      yield Buffer.alloc(0);
    },
  };
  const supervisor = { get: () => ({ log }) } as unknown as Supervisor;
  const routes = serviceRoutes(supervisor, {} as ContainerExecParts);
  const query = { path: "/v1/services/web/logs", query: "follow=true&tail=1" };
  const exchange = new Exchange(asked, response, "r", query, false);
  await routes.find(({ path }) => path.endsWith("/logs"))?.handle(exchange);
  expect(isFollowed).toBe(false);
});
