/**
 * The role `gateway`: the public API for clients, and a port for the other parts of the cluster (routes for edges, leases and storage
 * names for hosts, certificates for all). Any number of gateways share one database. A gateway issues its own certificate at each start.
 */
import { randomBytes } from "node:crypto";
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { type Config, type Log, type Metrics, systemClock, writeDurably } from "@cloche/base";
import { createGateway, type Database, type Gateway, HostDirectory, registryService } from "@cloche/gateway";
import { newSessionId } from "@cloche/protocol";
import { RouteService } from "@cloche/protocol/edge";
import { HostService } from "@cloche/protocol/host";
import { ClusterService, HostRegistryService, HostStorageService } from "@cloche/protocol/host-registry";
import {
  ClusterPort,
  clusterService,
  connectTo,
  idOf,
  type KeptCredentials,
  onlyFor,
  openServerSettings,
  RpcServer,
} from "@cloche/trust";
import { createClient } from "@connectrpc/connect";
import { gatewayUrl, publicDataPlaneUrl } from "../addresses.ts";
import {
  type ClusterPart,
  membersIn,
  openCluster,
  ownCredentials,
  useTokenOnce,
} from "../cluster/cluster-part.ts";
import { sharedEdgeCertificate } from "../cluster/edge-certificate.ts";
import { ensureSharedApiKey } from "../cluster/shared-api-key.ts";
import { sharedSigningKeys } from "../cluster/shared-signing-keys.ts";
import { KeyRotation } from "../key-rotation.ts";
import { gatewayOrders } from "../orders.ts";
import { gatewayConfig } from "../parts/gateway-settings.ts";
import { newMetrics, startOperatorPort } from "../parts/operator.ts";
import { portTaken } from "../parts/ports.ts";
import { keptMs, Stops } from "../parts/stops.ts";
import { claimPlaces, openPlaces, withoutSecrets } from "../places.ts";
import type { ProgressPrinter } from "../progress.ts";
import type { Running } from "../serve.ts";
import { startGatewayEndpoints } from "./gateway-endpoints.ts";
import { checkRole } from "../cluster/role-settings.ts";
import { reportStatus } from "./role-status.ts";

export async function startGatewayRole(
  config: Config,
  log: Log,
  progress: ProgressPrinter,
): Promise<Running> {
  checkRole("gateway", config);
  const stops = new Stops(log);
  const { gateway, keys, lost } = await stops.begin(() => startParts(config, log, progress, stops));
  const orders = gatewayOrders(gateway, () => keys.rotate());
  return { lost, waiting: () => stops.waiting, stop: () => stops.unwind(), orders };
}

async function startParts(config: Config, log: Log, progress: ProgressPrinter, stops: Stops) {
  const metrics = newMetrics();
  progress.step("database and checkpoint storage");
  const places = await openPlaces(config, true);
  const { database } = places;
  stops.add("database", () => database.close());
  const cluster = await openCluster(config, database);
  const installation = await cluster.secrets.installation();
  const { lost } = await claimPlaces(config, places, stops, log, installation);
  const identity = { role: "gateway", id: config.nodeId } as const;
  const credentials = await ownCredentials(cluster.authority, identity, log, stops);
  const keys = new KeyRotation({
    store: sharedSigningKeys(cluster.secrets),
    tokenLifetimeSeconds: config.tokenLifetimeSeconds,
    clock: systemClock,
    log: log.child({ part: "keys" }),
  });
  progress.step("gateway");
  const gateway = await start(config, { database, credentials, keys, installation, log, metrics, stops });
  const apiKey = await ensureSharedApiKey(config.home, gateway, cluster.secrets);
  keys.start((next) => gateway.rotateKeys(next));
  stops.add("signing keys", () => keys.close());
  await startOperatorPort(config, metrics, stops, () => gateway.ready());

  progress.step("listening");
  const port = await listen(config, { database, cluster, credentials, gateway, installation, log, stops });
  await gateway
    .listen(config.gatewayHost, config.gatewayPort)
    .catch(portTaken("CLOCHE_GATEWAY_PORT", config.gatewayPort));
  const endpoints = await startGatewayEndpoints(config, { gateway, cluster, log, stops });
  stops.add("readiness", async () => gateway.drain());
  const fields = {
    gateway_url: gatewayUrl(config),
    edge_url: publicDataPlaneUrl(config),
    data_plane_url: publicDataPlaneUrl(config),
    base_domain: config.baseDomain,
    ca_cert: await writeTrusted(config, cluster),
    api_key: apiKey,
    cluster_address: `${config.clusterAddress}:${port.port}`,
    ...endpoints,
  };
  await reportStatus(config, "gateway", fields, stops);
  log.info({ gateway: fields.gateway_url, node_id: config.nodeId }, "ready");
  return { gateway, keys, lost };
}

interface Parts {
  database: Database;
  credentials: KeptCredentials;
  log: Log;
  stops: Stops;
}

interface GatewayNeeds extends Parts {
  keys: KeyRotation;
  installation: string;
  metrics: Metrics;
}

async function start(config: Config, needs: GatewayNeeds): Promise<Gateway> {
  const { database, credentials, keys, installation, log, metrics, stops } = needs;
  const issuer = `cloche-${installation}`;
  const gateway = createGateway({
    database,
    hosts({ id, address }) {
      const { transport, close } = connectTo(address, { role: "host", id }, () => credentials.current);
      return { client: createClient(HostService, transport), close };
    },
    owner: newSessionId(randomBytes),
    signingKeys: await keys.current(),
    config: {
      ...gatewayConfig(config, issuer, publicDataPlaneUrl(config)),
      placement: config.placement,
    },
    clock: systemClock,
    log: log.child({ part: "gateway" }),
    metrics,
    randomBytes,
  });
  stops.add("gateway", () => gateway.close(keptMs(config)));
  await gateway.start();
  return gateway;
}

interface PortNeeds extends Parts {
  cluster: ClusterPart;
  gateway: Gateway;
  installation: string;
}

/** Opens the port for edges, hosts and joining parts. */
async function listen(config: Config, needs: PortNeeds): Promise<ClusterPort> {
  const { database, cluster, credentials, gateway, installation, log, stops } = needs;
  const directory = new HostDirectory(database.hosts, systemClock, log.child({ part: "hosts" }));
  directory.start();
  stops.add("hosts", () => directory.close());
  const nowMs = (): number => systemClock.nowMs();
  const joining = clusterService({
    authority: cluster.authority,
    tokens: cluster.tokens,
    useOnce: (id, untilMs) => useTokenOnce(database, id, untilMs),
    members: membersIn(database.secrets),
    edgeCertificate: () => sharedEdgeCertificate(cluster.secrets, config.baseDomain, nowMs()),
    installation: { id: installation, storage: withoutSecrets(config.blobUrl) },
    nowMs,
    joined: (role, id) => log.info({ role, id }, "a part has joined the cluster"),
  });
  const rpc = new RpcServer(
    (router) => {
      router.service(ClusterService, joining);
      router.service(RouteService, gateway.routeService, { interceptors: [onlyFor("edge")] });
      const registry = registryService(directory, (context) => idOf(context, "host"));
      router.service(HostRegistryService, registry, { interceptors: [onlyFor("host")] });
      const storage = gateway.storageService((context) => idOf(context, "host"));
      router.service(HostStorageService, storage, { interceptors: [onlyFor("host")] });
    },
    log.child({ part: "cluster port" }),
  );
  const port = await ClusterPort.listen({
    tls: openServerSettings(credentials.current),
    protocols: { h2: { roles: "anybody", serve: (socket) => rpc.serve(socket) } },
    address: config.clusterAddress,
    port: config.clusterPort,
    log: log.child({ part: "cluster port" }),
  }).catch(portTaken("CLOCHE_CLUSTER_PORT", config.clusterPort));
  credentials.onRenewed((renewed) => port.setTls(openServerSettings(renewed)));
  stops.add("cluster port", async () => {
    port.stopListening();
    await rpc.close();
    await port.close();
  });
  return port;
}

/** Writes the authority that clients of the edges trust into the home; answers the file. */
async function writeTrusted(config: Config, { secrets }: ClusterPart): Promise<string> {
  const { authority } = await sharedEdgeCertificate(secrets, config.baseDomain, systemClock.nowMs());
  const folder = join(config.home, "tls");
  await mkdir(folder, { recursive: true, mode: 0o755 });
  const file = join(folder, "ca.pem");
  await writeDurably(file, authority, 0o644);
  return file;
}
