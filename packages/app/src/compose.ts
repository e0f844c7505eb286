/** The one place where the parts meet: gateway, edge and host in one process, talking through their contracts in memory. */
import { randomBytes } from "node:crypto";
import { existsSync, readFileSync } from "node:fs";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { type Config, type Log, Metrics, removeEmptyFolder, systemClock } from "@cloche/base";
import { createEdge, type Edge } from "@cloche/edge";
import { createGateway, type Gateway, parseCorsOrigins } from "@cloche/gateway";
import {
  createHost,
  destroyNetwork,
  type Host,
  instanceTag,
  openNetwork,
  SANDBOX_RESOLVER,
} from "@cloche/host";
import {
  careForPool,
  closePool,
  type Pruned,
  pruneArtifacts,
  setUpHost,
  stayInUse,
} from "@cloche/host/setup";
import { ClocheError } from "@cloche/protocol";
import { RouteService } from "@cloche/protocol/edge";
import { HostService } from "@cloche/protocol/host";
import { createClient, createRouterTransport } from "@connectrpc/connect";
import { agentBuild } from "./agent-build.ts";
import { restoredMarker } from "./backup.ts";
import { makeDrivers } from "./drivers.ts";
import { type LocalE2b, prepareE2b } from "./e2b.ts";
import { KeyRotation, type Rotated } from "./key-rotation.ts";
import { ensureLocalTeam } from "./local-team.ts";
import { startMcp } from "./mcp-endpoint.ts";
import { openOperatorEndpoint } from "./operator-endpoint.ts";
import { Ownership } from "./ownership.ts";
import { openPlaces } from "./places.ts";
import { processMetrics } from "./process-metrics.ts";
import type { ProgressPrinter } from "./progress.ts";
import { dataPlaneUrl, edgeUrl, gatewayUrl, plainEdge, shown } from "./addresses.ts";
import { ensureAuthority } from "./setup/authority.ts";
import { ensureSigningKeys } from "./setup/signing-keys.ts";
import { readStatus, type ServiceStatus, writeStatus } from "./status-file.ts";

export interface RunningService {
  readonly status: ServiceStatus;
  /** Resolves when database or checkpoint storage are another service's now: this one must stop serving. Says why. */
  readonly lost: Promise<string>;
  /** Stops serving. With `suspend` every running machine is suspended first; without, machines go on for the next start. */
  stop(options: { suspend: boolean }): Promise<void>;
  rotateSigningKey(): Promise<Rotated>;
  /** Removes artifacts that neither this service nor any record of a machine needs. */
  pruneCache(): Promise<Pruned>;
}

/** A part that was started, and how it is stopped. */
interface StopStep {
  part: string;
  run(): Promise<void>;
}

/** How what was started is stopped. */
interface Ending {
  /** Running machines are suspended and nothing stays; without, machines go on for the next start, with disks and network. */
  suspend: boolean;
}

/**
 * Sets up what is missing and starts everything. When a part fails all is as it was before: what was started is stopped, and
 * nothing stays where nothing ran before. `serve: false` takes the machines over without listening: for a stop after a crash.
 */
export async function startService(
  config: Config,
  log: Log,
  progress: ProgressPrinter,
  options: { serve: boolean } = { serve: true },
): Promise<RunningService> {
  const undo: StopStep[] = [];
  const ending: Ending = { suspend: false };
  const nothingRan = !existsSync(networkState(instanceTag(config.home)));
  /** Every step is tried; what failed is joined. */
  const unwind = async (): Promise<void> => {
    const failures: unknown[] = [];
    for (let step = undo.pop(); step !== undefined; step = undo.pop()) {
      const beganMs = systemClock.monotonicMs();
      await step.run().catch((error: unknown) => failures.push(error));
      log.info({ part: step.part, ms: Math.round(systemClock.monotonicMs() - beganMs) }, "stopped");
    }
    if (failures.length > 0) throw new AggregateError(failures, "stopping was not complete");
  };
  try {
    return await startParts(config, log, progress, options, { undo, ending, unwind });
  } catch (error) {
    ending.suspend = nothingRan;
    await unwind().catch((problem: unknown) => log.error({ err: problem }, "undoing a failed start failed"));
    throw error;
  }
}

// oxlint-disable-next-line max-lines-per-function -- it puts the parts together, in order, each with its undo: a cut would only pass them along
async function startParts(
  config: Config,
  log: Log,
  progress: ProgressPrinter,
  { serve }: { serve: boolean },
  { undo, ending, unwind }: { undo: StopStep[]; ending: Ending; unwind(): Promise<void> },
): Promise<RunningService> {
  const clock = systemClock;
  const metrics = new Metrics();
  processMetrics(metrics, packageVersion());
  const stopsWith = (part: string, run: () => Promise<void>): void => void undo.push({ part, run });
  progress.step("database and checkpoint storage");
  const { database, blobs, databasePlace, storePlace } = await openPlaces(config);
  stopsWith("database", () => database.close());
  // Before anything on this machine is touched: they may be another's.
  const ownership = await Ownership.claim({
    home: config.home,
    database: databasePlace,
    store: storePlace,
    guard: (why) => blobs.guard(why),
    clock,
    log: log.child({ part: "ownership" }),
    randomBytes,
  });
  stopsWith("ownership", () => ownership.release());
  const lost = Promise.withResolvers<string>();
  ownership.watch(lost.resolve);

  const artifacts = await setUpHost({
    home: config.home,
    cache: config.cache,
    runsc: config.runsc,
    poolGb: config.poolGb,
    inPod: config.hostInPod,
    artifacts: config.artifacts,
    agent: agentBuild,
    progress: (step, detail) => progress.step(step, detail),
  });
  const endUse = stayInUse();
  stopsWith("artifacts", async () => endUse());
  const endPoolCare = careForPool(artifacts.pool, artifacts.native, (error) =>
    log.warn({ err: error }, "giving back free space of the pool"),
  );
  stopsWith("pool", async () => {
    await endPoolCare();
    await artifacts.native.close();
    if (ending.suspend) await closePool(config.home);
  });
  const signingKeys = await ensureSigningKeys(config.home, clock.nowMs());
  const tls = await ensureAuthority(config.home, config.baseDomain, clock.nowMs());

  const tag = instanceTag(config.home);
  const runDir = `/run/cloche-${tag}`;
  stopsWith("run folder", async () => {
    if (ending.suspend) await removeEmptyFolder(runDir);
  });
  const place = { tag, stateDir: networkState(tag), native: artifacts.native };
  stopsWith("what is left of the network", async () => {
    if (ending.suspend) await destroyNetwork(place);
  });
  const network = await openNetwork({
    ...place,
    subnet: config.subnet,
    subnetFile: join(config.home, "subnet"),
    ...(config.dnsServers.length > 0 && { resolvers: async () => config.dnsServers }),
    progress: (step, detail) => progress.step(step, detail),
    onError: (error) => log.warn({ err: error }, "network"),
  });
  stopsWith("network", () => network.close());

  progress.step("machines");
  const { drivers, emulated } = await makeDrivers({ config, artifacts, tag, network, progress, log });
  const host = createHost({
    poolDir: artifacts.pool.dir,
    runDir,
    drivers,
    templates: artifacts.templates,
    native: artifacts.native,
    blobs,
    dnsServers: [SANDBOX_RESOLVER],
    egress: network,
    checkpointLimits: { count: config.maxCheckpoints, bytes: config.maxCheckpointGb * 1024 ** 3 },
    clock,
    log: log.child({ part: "host" }),
    metrics,
    dozeSeconds: config.dozeSeconds,
    traceOperations: config.trace === "operations",
    randomBytes,
  });
  stopsWith("host", () => host.stop(ending));
  await host.start();
  // What a machine that is not recovered yet may have is not given back.
  void host.recovered
    .then(() => network.reclaim())
    .catch((error: unknown) => log.warn({ err: error }, "network that nobody has was not given back"));
  const hostTransport = createRouterTransport((router) => {
    router.service(HostService, host.service);
  });

  progress.step("gateway");
  // A backup may know less than there is: what it does not know is left alone, as with a database that is new.
  const isRestored = existsSync(restoredMarker(config.home));
  const gateway = createGateway({
    database: isRestored ? { ...database, isNew: true } : database,
    host: createClient(HostService, hostTransport),
    signingKeys,
    config: {
      issuer: `cloche-${tag}`,
      baseDomain: config.baseDomain,
      edgePort: config.edgePort,
      dataPlaneUrl: dataPlaneUrl(config),
      tokenLifetimeSeconds: config.tokenLifetimeSeconds,
      corsOrigins: parseCorsOrigins(config.corsOrigins),
      limits: {
        sandboxes: config.maxSandboxes,
        concurrentCalls: config.maxConcurrentCalls,
        callsPerSecond: config.maxCallsPerSecond,
      },
    },
    clock,
    log: log.child({ part: "gateway" }),
    metrics,
    randomBytes,
  });
  stopsWith("gateway", () => gateway.close());
  const { apiKey } = await ensureLocalTeam(config.home, gateway, log);
  await gateway.start();
  const keyRotation = new KeyRotation({
    home: config.home,
    tokenLifetimeSeconds: config.tokenLifetimeSeconds,
    use: (keys) => gateway.rotateKeys(keys),
    clock,
    log: log.child({ part: "keys" }),
  });
  if (serve) await keyRotation.start();
  stopsWith("key rotation", async () => void (await keyRotation.close()));

  const e2b = await prepareE2b(config, gateway, tls, log);
  const { runsc } = artifacts;
  const released = runsc.released?.toISOString().slice(0, 10);
  const status = statusOf(config, tls.caFile, apiKey, {
    runtime: [...drivers.keys()][0] ?? "none",
    emulated,
    subnet: network.subnet,
    gvisor: { version: runsc.version, ...(released !== undefined && { released }) },
    ...(e2b && { e2b: e2b.status }),
  });
  if (serve) {
    let edge: Edge | undefined;
    const ready = async (): Promise<void> => {
      if (edge === undefined) throw new ClocheError("unavailable", "the service is starting");
      edge.ready();
      await gateway.ready();
    };
    if (config.metricsPort > 0) {
      const operator = await openOperatorEndpoint(config.metricsPort, metrics, ready).catch(
        portTaken("CLOCHE_METRICS_PORT", config.metricsPort),
      );
      stopsWith("operator endpoint", () => operator.close());
    }
    edge = await startEdge(config, { gateway, host, e2b }, tls, log, metrics);
    stopsWith("edge", async () => edge?.stop(config.drainSeconds * 1_000));
    progress.step("listening");
    await gateway
      .listen(config.gatewayHost, config.gatewayPort)
      .catch(portTaken("CLOCHE_GATEWAY_PORT", config.gatewayPort));
    if (config.mcpPort > 0) {
      const closeMcp = await startMcp(
        config,
        status,
        readFileSync(tls.caFile, "utf8"),
        log.child({ part: "mcp" }),
      ).catch(portTaken("CLOCHE_MCP_PORT", config.mcpPort));
      stopsWith("MCP endpoint", () => closeMcp(config.drainSeconds * 1_000));
    }
    if (e2b !== undefined) {
      await e2b.endpoint
        .listen(config.e2bPort, e2b.address)
        .catch(portTaken("CLOCHE_E2B_PORT", config.e2bPort));
      stopsWith("E2B endpoint", () => e2b.endpoint.close(config.drainSeconds * 1_000));
    }
    // The first step of a stop: who asks is sent elsewhere, who is being answered is answered.
    stopsWith("readiness", async () => {
      gateway.drain();
      edge?.drain();
    });
    await writeStatus(config.home, status);
    stopsWith("status", () => writeStatus(config.home, { ...status, ready: false, pid: 0 }));
  }
  log.info({ gateway: status.gateway_url, edge: status.edge_url, runtime: status.runtime }, "ready");

  return {
    status,
    lost: lost.promise,
    rotateSigningKey: () => keyRotation.rotate(),
    pruneCache: async () => {
      // Machines of all services on this host, and what this one has suspended.
      const records = [join(artifacts.pool.dir, "machines"), ...(await runningUnits())];
      const pruned = await pruneArtifacts({ cache: config.cache, records, nowMs: clock.nowMs() });
      log.info({ ...pruned }, "artifacts that nobody needs were removed");
      return pruned;
    },
    async stop({ suspend }) {
      ending.suspend = suspend;
      await unwind();
      const known = await readStatus(config.home);
      if (known?.ready === false && !serve) await writeStatus(config.home, { ...known, pid: 0 });
    },
  };
}

/** Is there from the first start on until a stop that leaves nothing. */
const networkState = (tag: string): string => join(`/run/cloche-${tag}`, "network");

/** Where gVisor's drivers note what runs. */
async function runningUnits(): Promise<string[]> {
  const names = (await readdir("/run")).filter((name) => name.startsWith("cloche-"));
  return names.map((name) => join("/run", name, "gvisor", "units"));
}

async function startEdge(
  config: Config,
  { gateway, host, e2b }: { gateway: Gateway; host: Host; e2b: LocalE2b | undefined },
  tls: { cert: string; key: string },
  log: Log,
  metrics: Metrics,
): Promise<Edge> {
  const routes = createRouterTransport((router) => {
    router.service(RouteService, gateway.routeService);
  });
  const plain = plainEdge(config);
  const edge: Edge = createEdge({
    tls: { cert: tls.cert, key: tls.key },
    baseDomain: config.baseDomain,
    port: config.edgePort,
    address: config.edgeHost,
    ...(plain && { plain }),
    routes: createClient(RouteService, routes),
    hostDataPlane: host.dataPlane,
    ...(e2b && { neighbour: e2b.endpoint }),
    limits: { requestsPerSecond: config.maxRequestsPerSecond },
    corsOrigins: parseCorsOrigins(config.corsOrigins),
    clock: systemClock,
    log,
    metrics,
  });
  await edge.start().catch((error: NodeJS.ErrnoException & { port?: number }) => {
    if (error.port === plain?.port) portTaken("CLOCHE_EDGE_HTTP_PORT", config.edgeHttpPort)(error);
    else portTaken("CLOCHE_EDGE_PORT", config.edgePort)(error);
  });
  return edge;
}

function portTaken(setting: string, port: number): (error: NodeJS.ErrnoException) => never {
  return (error) => {
    if (error.code !== "EADDRINUSE") throw error;
    throw new ClocheError("failed_precondition", `port ${port} is in use; set ${setting} to a free one`, {
      cause: error,
    });
  };
}

function statusOf(
  config: Config,
  caFile: string,
  apiKey: string,
  machines: Pick<ServiceStatus, "runtime" | "emulated" | "gvisor" | "subnet" | "e2b">,
): ServiceStatus {
  return {
    gateway_url: gatewayUrl(config),
    edge_url: edgeUrl(config),
    data_plane_url: dataPlaneUrl(config),
    ...(config.mcpPort > 0 && { mcp_url: `http://${shown(config.gatewayHost)}:${config.mcpPort}/mcp` }),
    base_domain: config.baseDomain,
    ca_cert: caFile,
    api_key: apiKey,
    ...machines,
    version: packageVersion(),
    pid: process.pid,
    ready: true,
  };
}

function packageVersion(): string {
  const text = readFileSync(new URL("../package.json", import.meta.url), "utf8");
  return (JSON.parse(text) as { version: string }).version;
}
