/**
 * Child process: all hosts of the cluster behind one HTTP/2 port. A header says which of them a call is for. Machines are entries of a
 * map that run at once; nothing else is simulated. Says its port to its parent.
 */
import { createServer } from "node:http2";
import { type HandlerContext } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { HostService } from "@cloche/protocol/host";
import type { HostClient } from "@cloche/gateway";
import { FakeHost, type HostMethod } from "../../packages/gateway/src/testing/fake-host.ts";
import { hostHeader, hostIdOf, sandboxIdOf, shape } from "./records.ts";

const hosts = new Map<string, FakeHost>();
const [count = 0, records = 0] = process.argv.slice(2).map(Number);
for (let index = 0; index < count; index += 1) hosts.set(hostIdOf(index), new FakeHost());
for (let index = 0; index < records; index += 1)
  hosts.get(hostIdOf(index % count))?.add({ sandboxId: sandboxIdOf(index), ...shape });

const unary = (client: HostClient, method: string) =>
  client[method as HostMethod] as (request: object) => Promise<object>;
const clientOf = (context: HandlerContext) => {
  const host = hosts.get(context.requestHeader.get(hostHeader) ?? "");
  if (host === undefined) throw new Error("there is no such host");
  host.calls.length = 0;
  return host.client;
};
const calls = Object.fromEntries(
  HostService.methods.map(({ localName }) => [
    localName,
    localName === "watchMachines"
      ? (request: object, context: HandlerContext) =>
          clientOf(context).watchMachines(request, { signal: context.signal })
      : (request: object, context: HandlerContext) => unary(clientOf(context), localName)(request),
  ]),
);
const server = createServer(connectNodeAdapter({ routes: ({ service }) => service(HostService, calls) }));
server.listen(0, "127.0.0.1", () => process.send?.({ port: (server.address() as { port: number }).port }));
