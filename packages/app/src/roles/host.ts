/**
 * The role `host`: the machines of this computer, for gateways and edges on other computers. One port (trust's ClusterPort) serves
 * calls of gateways, the relay to agents, and the data plane's checkpoint routes.
 *
 * SIGTERM leaves the lease for a limited time and keeps machines running, so that the next start adopts them. `cloche down` suspends
 * them.
 */
import { hostname, totalmem } from "node:os";
import { join } from "node:path";
import { type Config, type Log, systemClock } from "@cloche/base";
import {
  type ClusterParts,
  gatewayNames,
  Guard,
  GuardedStore,
  type Host,
  openBlobStore,
  Relay,
  serveDataPlane,
} from "@cloche/host";
import { ClocheError, relayProtocol } from "@cloche/protocol";
import { HostService } from "@cloche/protocol/host";
import { HostRegistryService, HostStorageService } from "@cloche/protocol/host-registry";
import { ClusterPort, connectTo, connectToGateways, onlyFor, RpcServer, serverSettings } from "@cloche/trust";
import { createClient } from "@connectrpc/connect";
import { becomeMember, installationOf, type Membership, untilReached } from "../cluster/membership.ts";
import { checkSharedStore } from "../cluster/shared-store.ts";
import { hasRunBefore, type LocalMachines, type MachinesNeeds, startMachines } from "../parts/machines.ts";
import { requireRoom } from "../parts/disk-room.ts";
import { newMetrics, packageVersion, startOperatorPort } from "../parts/operator.ts";
import { portTaken } from "../parts/ports.ts";
import { Stops } from "../parts/stops.ts";
import { storePlaceOf } from "../places.ts";
import type { ProgressPrinter } from "../progress.ts";
import type { Running } from "../serve.ts";
import { checkRole } from "../cluster/role-settings.ts";
import { reportStatus } from "./role-status.ts";

export async function startHostRole(config: Config, log: Log, progress: ProgressPrinter): Promise<Running> {
  checkRole("host", config);
  const stops = new Stops(log);
  stops.suspend = !hasRunBefore(config.home);
  const machines = await stops.begin(() => startParts(config, log, progress, stops));
  return {
    orders: { "prune-cache": () => machines.pruneCache() },
    waiting: () => stops.waiting,
    async stop({ suspend }) {
      // Machines frozen by the lease's guard cannot be suspended, so they stay as they are.
      stops.suspend = suspend && machines.host.lease?.isHeld !== false;
      await stops.unwind();
    },
  };
}

async function startParts(
  config: Config,
  log: Log,
  progress: ProgressPrinter,
  stops: Stops,
): Promise<LocalMachines> {
  const metrics = newMetrics();
  progress.step("joining the cluster");
  const member = await becomeMember(config, "host", log, stops);
  progress.step("checkpoint storage");
  const blobs = await openStore(config, member, log, stops);
  // The host listens before it starts, because gateways must tell a lost host which machines are still its own.
  let port: ClusterPort | undefined;
  const machines = await startMachines({
    config,
    log,
    metrics,
    progress,
    stops,
    host: { blobs },
    cluster: clusterParts(config, member, log.child({ part: "lease" }), stops, () => port),
    async made(host) {
      port = await listen(config, host, member, log, stops);
      progress.step("machines", "waiting for a gateway's word that they may run");
    },
  });
  const { host } = machines;
  await startOperatorPort(config, metrics, stops, async () => {
    requireHeld(host);
    await requireRoom(config.home);
  });
  const status = await reportStatus(config, "host", statusOf(config, machines, port), stops);
  log.info({ cluster: status.cluster_address, node_id: config.nodeId }, "ready");
  return machines;
}

/** The cluster's storage, and no other. Waits for a gateway's word. */
async function openStore(config: Config, member: Membership, log: Log, stops: Stops): Promise<GuardedStore> {
  const store = await openBlobStore(config.blobUrl, config.home, process.env);
  const blobs = new GuardedStore(store);
  const stopping = new AbortController();
  stops.add("checkpoint storage", async () => stopping.abort());
  await checkSharedStore({
    blobs,
    place: storePlaceOf(config, store),
    installation: await untilReached(systemClock, log, () => installationOf(member)),
    clock: systemClock,
    log: log.child({ part: "ownership" }),
    signal: stopping.signal,
  });
  return blobs;
}

type Own = Parameters<NonNullable<MachinesNeeds["cluster"]>>[0];

/** `port`: answers the port on which this host listens when it registers. */
function clusterParts(
  config: Config,
  member: Membership,
  log: Log,
  stops: Stops,
  port: () => ClusterPort | undefined,
): (own: Own) => ClusterParts {
  // One client for each gateway, because the lease chooses the gateway and the time to wait for it.
  const gateways = config.clusterGateways.map((address) =>
    connectTo(address, { role: "gateway" }, member.credentials),
  );
  const storage = connectToGateways(config.clusterGateways, member.credentials);
  stops.add("connections to gateways", async () => {
    for (const connection of [...gateways, storage]) connection.close();
  });
  return ({ guard: program, native, runDir, tag }) => ({
    registration: () => registrationOf(config, port()?.port ?? config.clusterPort),
    gateways: gateways.map(({ transport }) => createClient(HostRegistryService, transport)),
    guard: new Guard({ program, directory: join(runDir, "guard"), tag, native, clock: systemClock, log }),
    // Gateways keep the names of stored objects.
    names: gatewayNames(createClient(HostStorageService, storage.transport)),
  });
}

const statusOf = (
  config: Config,
  { runtimes, emulated, gvisor, subnet }: LocalMachines,
  port: ClusterPort | undefined,
) => ({
  cluster_address: advertised(config, port?.port ?? config.clusterPort),
  runtime: runtimes[0] ?? "none",
  emulated,
  gvisor,
  subnet,
});

async function listen(
  config: Config,
  host: Host,
  member: Membership,
  log: Log,
  stops: Stops,
): Promise<ClusterPort> {
  const rpc = new RpcServer(
    (router) => {
      router.service(HostService, host.service, { interceptors: [onlyFor("gateway")] });
    },
    log.child({ part: "cluster port" }),
  );
  const dataPlane = serveDataPlane(host.dataPlane);
  const relay = new Relay({ ...host.reach, log: log.child({ part: "relay" }) });
  const port = await ClusterPort.listen({
    tls: serverSettings(member.credentials()),
    protocols: {
      h2: { roles: ["gateway"], serve: (socket) => rpc.serve(socket) },
      [relayProtocol]: { roles: ["edge"], serve: (socket) => relay.serve(socket) },
      "http/1.1": { roles: ["edge"], serve: (socket) => dataPlane.serve(socket) },
    },
    address: config.clusterAddress,
    port: config.clusterPort,
    log: log.child({ part: "cluster port" }),
  }).catch(portTaken("CLOCHE_CLUSTER_PORT", config.clusterPort));
  member.onRenewed((renewed) => port.setTls(serverSettings(renewed)));
  stops.add("cluster port", async () => {
    const graceMs = config.drainSeconds * 1_000;
    await Promise.all([relay.drain(graceMs), dataPlane.drain(graceMs)]);
    await rpc.close();
    await port.close();
  });
  return port;
}

const registrationOf = (config: Config, port: number): ReturnType<ClusterParts["registration"]> => ({
  hostId: config.nodeId,
  address: advertised(config, port),
  capacityMemoryMb: capacityMb(config),
  version: packageVersion(),
});

function requireHeld({ lease }: Host): void {
  if (lease?.isHeld) return;
  throw new ClocheError("unavailable", "this host has no lease from a gateway: its machines are frozen");
}

/** The address at which gateways and edges reach this host. */
const advertised = ({ advertise }: Config, port: number): string => advertise || `${hostname()}:${port}`;

/** Memory for all sandboxes of this host together, MiB. */
const capacityMb = ({ hostMemoryMb }: Config): number =>
  hostMemoryMb || Math.floor((totalmem() / 1024 ** 2) * (7 / 8));
