/**
 * Child process: a gateway of the cluster. Says its port when it is ready, and on each message what its longest turns of the event loop
 * took since the last: in processor time of the thread, so that a busy computer does not count.
 */
import { randomBytes } from "node:crypto";
import { silentLog, systemClock } from "@cloche/base";
import { createGateway } from "@cloche/gateway";
import { HostService } from "@cloche/protocol/host";
import { createClient } from "@connectrpc/connect";
import { createConnectTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { testConfig, testSigningKey } from "../../packages/gateway/src/testing/gateway-fixture.ts";
import { percentile } from "../statistics.ts";
import { hostHeader, openShared } from "./records.ts";

const [url = "", owner = "", hostsPort = ""] = process.argv.slice(2);
const baseUrl = `http://127.0.0.1:${hostsPort}`;
const everyMs = 5;
// Not a turn of the gateway: a cluster makes its signing key once.
const signingKeys = [testSigningKey()];
let turnsMs: number[] = [];
let spentUs = process.threadCpuUsage();
setInterval(() => {
  const { user, system } = process.threadCpuUsage(spentUs);
  spentUs = process.threadCpuUsage();
  turnsMs.push((user + system) / 1_000);
}, everyMs).unref();
const database = await openShared(url);
const limits = { sandboxes: 1_000_000, callsPerSecond: 1_000_000, concurrentCalls: 10_000 };
const startedMs = performance.now();
const gateway = createGateway({
  database,
  hosts: ({ id }) => {
    const sessionManager = new Http2SessionManager(baseUrl);
    const transport = createConnectTransport({
      baseUrl,
      httpVersion: "2",
      sessionManager,
      interceptors: [
        (next) => (request) => {
          request.header.set(hostHeader, id);
          return next(request);
        },
      ],
    });
    return { client: createClient(HostService, transport), close: () => sessionManager.abort() };
  },
  owner,
  signingKeys,
  config: { ...testConfig, limits },
  clock: systemClock,
  log: silentLog,
  randomBytes,
});
await gateway.start();
const { port } = await gateway.listen("127.0.0.1", 0);
const [team] = await gateway.teams();
const { secret } = await gateway.createApiKey(team?.id ?? "", "scale");
process.send?.({ port, secret, startMs: performance.now() - startedMs });
process.on("message", (question) => {
  if (question === "close") {
    void gateway
      .close()
      .then(() => database.close())
      .then(() => process.exit(0));
    return;
  }
  const longest = { maxMs: Math.max(...turnsMs), p999Ms: percentile(turnsMs, 99.9) };
  turnsMs = [];
  process.send?.({ ...longest, rssMb: process.memoryUsage().rss / 2 ** 20 });
});
