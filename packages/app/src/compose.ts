/** Composes the parts of a single machine: gateway, edge and host in one process, which call each other's contracts in memory. */
import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { type Config, type Log, systemClock } from "@cloche/base";
import type { Edge } from "@cloche/edge";
import { createGateway, type Gateway } from "@cloche/gateway";
import { type Host, instanceTag } from "@cloche/host";
import { ClocheError } from "@cloche/protocol";
import { RouteService } from "@cloche/protocol/edge";
import { HostService } from "@cloche/protocol/host";
import { createClient, createRouterTransport } from "@connectrpc/connect";
import { dataPlaneUrl, edgeUrl, gatewayUrl, shown } from "./addresses.ts";
import { afterRestore } from "./backup.ts";
import { prepareE2b } from "./e2b.ts";
import { KeyRotation } from "./key-rotation.ts";
import { ensureLocalTeam } from "./local-team.ts";
import { startMcp } from "./mcp-endpoint.ts";
import { gatewayOrders } from "./orders.ts";
import { requireRoom } from "./parts/disk-room.ts";
import { startEdge } from "./parts/edge.ts";
import { gatewayConfig } from "./parts/gateway-settings.ts";
import { hasRunBefore, type LocalMachines, startMachines } from "./parts/machines.ts";
import { newMetrics, packageVersion, startOperatorPort } from "./parts/operator.ts";
import { portTaken } from "./parts/ports.ts";
import { answersUnderWay, Stops } from "./parts/stops.ts";
import { claimPlaces, openPlaces } from "./places.ts";
import type { ProgressPrinter } from "./progress.ts";
import { ensureAuthority } from "./setup/authority.ts";
import { homeSigningKeys } from "./setup/signing-keys.ts";
import type { Running } from "./serve.ts";
import { readStatus, type ServiceStatus, writeStatus } from "./status-file.ts";

export interface RunningService extends Running {
  readonly status: ServiceStatus;
}

/**
 * Sets up missing artifacts and starts all parts. If one fails, the parts that were started are stopped, and a first start leaves
 * nothing behind. `serve: false` adopts the machines without listening, for a stop after a crash.
 */
export async function startService(
  config: Config,
  log: Log,
  progress: ProgressPrinter,
  options: { serve: boolean } = { serve: true },
): Promise<RunningService> {
  const stops = new Stops(log);
  stops.suspend = !hasRunBefore(config.home);
  return await stops.begin(() => startParts(config, log, progress, options, stops));
}

// oxlint-disable-next-line max-lines-per-function -- it puts the parts together, in order, each with its undo: a cut would only pass them along
async function startParts(
  config: Config,
  log: Log,
  progress: ProgressPrinter,
  { serve }: { serve: boolean },
  stops: Stops,
): Promise<RunningService> {
  const clock = systemClock;
  const metrics = newMetrics();
  progress.step("database and checkpoint storage");
  const places = await openPlaces(config);
  const { database, blobs } = places;
  stops.add("database", () => database.close());
  // Before anything on this machine is changed: database and storage may belong to another installation.
  const { lost } = await claimPlaces(config, places, stops, log);

  const machines = await startMachines({ config, log, metrics, progress, stops, host: { blobs } });
  const { host } = machines;
  const keys = new KeyRotation({
    store: homeSigningKeys(config.home),
    tokenLifetimeSeconds: config.tokenLifetimeSeconds,
    clock,
    log: log.child({ part: "keys" }),
  });
  const tls = await ensureAuthority(config.home, config.baseDomain, clock.nowMs());
  const hostTransport = createRouterTransport((router) => {
    router.service(HostService, host.service);
  });

  progress.step("gateway");
  await afterRestore(config.home, database, log);
  const gateway = createGateway({
    database,
    alsoReady: () => requireRoom(config.home),
    host: createClient(HostService, hostTransport),
    signingKeys: await keys.current(),
    config: gatewayConfig(config, `cloche-${instanceTag(config.home)}`, dataPlaneUrl(config)),
    clock,
    log: log.child({ part: "gateway" }),
    metrics,
    randomBytes,
  });
  stops.add("gateway", () => gateway.close());
  const { apiKey } = await ensureLocalTeam(config.home, gateway, log);
  await gateway.start();
  if (serve) keys.start((next) => gateway.rotateKeys(next));
  stops.add("signing keys", () => keys.close());

  const e2b = await prepareE2b(config, gateway, tls, log);
  const orphans = (await gateway.orphans.list()).length;
  const status: ServiceStatus = {
    ...statusOf(config, tls.caFile, apiKey, machines, e2b?.status),
    ...(orphans > 0 && { orphans_at_start: orphans }),
  };
  if (serve) {
    let edge: Edge | undefined;
    const ready = async (): Promise<void> => {
      if (edge === undefined) throw new ClocheError("unavailable", "the service is starting");
      edge.ready();
      await gateway.ready();
    };
    await startOperatorPort(config, metrics, stops, ready);
    const beside = e2b && { neighbour: e2b.endpoint, neighbourPlain: e2b.address };
    edge = await startEdge(config, { tls, ...inMemory(gateway, host), ...beside }, log, metrics);
    stops.add("edge", async () => edge?.stop(config.drainSeconds * 1_000), answersUnderWay);
    progress.step("listening");
    await gateway
      .listen(config.gatewayHost, config.gatewayPort)
      .catch(portTaken("CLOCHE_GATEWAY_PORT", config.gatewayPort));
    if (config.mcpPort > 0) {
      const caCert = readFileSync(tls.caFile, "utf8");
      const closeMcp = await startMcp(config, { gateway, edgeUrl: status.edge_url, caCert }, log);
      stops.add("MCP endpoint", () => closeMcp(config.drainSeconds * 1_000), answersUnderWay);
    }
    if (e2b !== undefined)
      stops.add("E2B endpoint", () => e2b.endpoint.close(config.drainSeconds * 1_000), answersUnderWay);
    // The first step of a stop: new requests are sent away, requests under way are answered.
    stops.add("readiness", async () => {
      gateway.drain();
      edge?.drain();
    });
    await writeStatus(config.home, status);
    stops.add("status", () => writeStatus(config.home, { ...status, ready: false, pid: 0 }));
  }
  log.info({ gateway: status.gateway_url, edge: status.edge_url, runtime: status.runtime }, "ready");

  return {
    status,
    lost,
    orders: {
      ...gatewayOrders(gateway, () => keys.rotate()),
      "prune-cache": () => machines.pruneCache(),
    },
    waiting: () => stops.waiting,
    async stop({ suspend }) {
      stops.suspend = suspend;
      await stops.unwind();
      const known = await readStatus(config.home);
      if (known?.ready === false && !serve) await writeStatus(config.home, { ...known, pid: 0 });
    },
  };
}

/** The edge's clients of gateway and host in this process. */
function inMemory(gateway: Gateway, host: Host) {
  const routes = createRouterTransport((router) => {
    router.service(RouteService, gateway.routeService);
  });
  return {
    routes: createClient(RouteService, routes),
    hostDataPlane: host.dataPlane,
    keepAwake: host.reach.keepAwake,
  };
}

function statusOf(
  config: Config,
  caFile: string,
  apiKey: string,
  { runtimes, emulated, gvisor, subnet }: LocalMachines,
  e2b: ServiceStatus["e2b"],
): ServiceStatus {
  return {
    gateway_url: gatewayUrl(config),
    edge_url: edgeUrl(config),
    data_plane_url: dataPlaneUrl(config),
    ...(config.mcpPort > 0 && { mcp_url: `http://${shown(config.gatewayHost)}:${config.mcpPort}/mcp` }),
    base_domain: config.baseDomain,
    ca_cert: caFile,
    api_key: apiKey,
    runtime: runtimes[0] ?? "none",
    emulated,
    gvisor,
    subnet,
    ...(e2b && { e2b }),
    version: packageVersion(),
    pid: process.pid,
    ready: true,
  };
}
