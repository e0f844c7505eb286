/**
 * The role `host`: the machines of this computer, for gateways and edges on others. One port serves all of them (trust's ClusterPort):
 * orders of gateways, the relay to agents, and the data plane's checkpoint routes.
 *
 * SIGTERM leaves the lease for a while and the machines running, for the next start to adopt; `cloche down` suspends them.
 */
import { hostname, totalmem, uptime } from "node:os";
import { type Config, type Log, systemClock } from "@cloche/base";
import {
  type ClusterParts,
  gatewayNames,
  LeaseKeeper,
  openBlobStore,
  Relay,
  serveDataPlane,
} from "@cloche/host";
import { ClocheError, relayProtocol } from "@cloche/protocol";
import { HostService } from "@cloche/protocol/host";
import { HostRegistryService, HostStorageService } from "@cloche/protocol/host-registry";
import { ClusterPort, connectTo, connectToGateways, onlyFor, RpcServer, serverSettings } from "@cloche/trust";
import { createClient } from "@connectrpc/connect";
import { becomeMember, type Membership } from "../cluster/membership.ts";
import { hasRunBefore, type LocalMachines, startMachines } from "../parts/machines.ts";
import { newMetrics, packageVersion, startOperatorPort } from "../parts/operator.ts";
import { portTaken } from "../parts/ports.ts";
import { Stops } from "../parts/stops.ts";
import type { ProgressPrinter } from "../progress.ts";
import type { Running } from "../serve.ts";
import { checkRole } from "./role-settings.ts";
import { tellStatus } from "./role-status.ts";

export async function startHostRole(config: Config, log: Log, progress: ProgressPrinter): Promise<Running> {
  checkRole("host", config);
  const stops = new Stops(log);
  const nothingRan = !hasRunBefore(config.home);
  try {
    const machines = await startParts(config, log, progress, stops);
    return {
      pruneCache: () => machines.pruneCache(),
      async stop({ suspend }) {
        stops.suspend = suspend;
        await stops.unwind();
      },
    };
  } catch (error) {
    stops.suspend = nothingRan;
    await stops
      .unwind()
      .catch((problem: unknown) => log.error({ err: problem }, "undoing a failed start failed"));
    throw error;
  }
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
  const blobs = await openBlobStore(config.blobUrl, config.home, process.env);
  const term: Term = { generation: undefined };
  const host = { blobs, isRelayed: true, cluster: clusterParts(config, member, term, stops) };
  const machines = await startMachines({ config, log, metrics, progress, stops, host });
  progress.step("listening");
  const port = await listen(config, machines, member, log, stops);
  const cpuClass = await machines.host.memoryClass();
  const lease = keepLease(config, { ...machines, cpuClass, term }, port, member, log, stops);
  await startOperatorPort(config, metrics, stops, async () => lease.check());
  const status = await tellStatus(config, "host", statusOf(config, machines, port), stops);
  log.info({ cluster: status.cluster_address, node_id: config.nodeId }, "ready");
  return machines;
}

/** Of this host's lease, once it has one. */
interface Term {
  generation: number | undefined;
}

/** What lies in storage is named by gateways. */
function clusterParts(config: Config, member: Membership, term: Term, stops: Stops): ClusterParts {
  const gateways = connectToGateways(config.clusterGateways, member.credentials);
  stops.add("names of storage", async () => gateways.close());
  return {
    generation() {
      if (term.generation !== undefined) return term.generation;
      throw new ClocheError("unavailable", "this host has not registered with a gateway yet");
    },
    names: gatewayNames(createClient(HostStorageService, gateways.transport)),
  };
}

const statusOf = (
  config: Config,
  { runtimes, emulated, gvisor, subnet }: LocalMachines,
  port: ClusterPort,
) => ({
  cluster_address: advertised(config, port.port),
  runtime: runtimes[0] ?? "none",
  emulated,
  gvisor,
  subnet,
});

async function listen(
  config: Config,
  { host }: LocalMachines,
  member: Membership,
  log: Log,
  stops: Stops,
): Promise<ClusterPort> {
  const rpc = new RpcServer((router) => {
    router.service(HostService, host.service, { interceptors: [onlyFor("gateway")] });
  });
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

/** How long gateways wait for the next start of a host that was stopped with its machines running. */
const awayMs = 600_000;

/** `check` throws where this host has no lease. */
function keepLease(
  config: Config,
  { runtimes, cpuClass, term: own }: LocalMachines & { cpuClass: string; term: Term },
  port: ClusterPort,
  member: Membership,
  log: Log,
  stops: Stops,
): { check(): void } {
  let untilMs = Number.NEGATIVE_INFINITY;
  const bootMs = (): number => uptime() * 1_000;
  const connections = config.clusterGateways.map((address) =>
    connectTo(address, { role: "gateway" }, member.credentials),
  );
  const keeper = new LeaseKeeper({
    description: {
      hostId: config.nodeId,
      address: advertised(config, port.port),
      zone: config.zone,
      cpuClass,
      capacityMemoryMb: capacityMb(config),
      version: packageVersion(),
      labels: Object.fromEntries(config.hostLabels.map((label) => label.split("=") as [string, string])),
      runtimes,
    },
    gateways: connections.map(({ transport }) => createClient(HostRegistryService, transport)),
    clock: systemClock,
    bootMs,
    log: log.child({ part: "lease" }),
    registered(term) {
      own.generation = term.generation;
      untilMs = term.untilMs;
      log.info({ generation: term.generation }, "registered with the cluster");
    },
    renewed(term) {
      untilMs = term.untilMs;
    },
  });
  keeper.start();
  stops.add("lease", async () => {
    if (stops.suspend) await keeper.stop();
    else await keeper.leave(awayMs);
    for (const connection of connections) connection.close();
  });
  return {
    check() {
      if (bootMs() > untilMs) throw new ClocheError("unavailable", "this host has no lease from a gateway");
    },
  };
}

/** Where gateways and edges reach this host. */
const advertised = ({ advertise }: Config, port: number): string => advertise || `${hostname()}:${port}`;

/** Of all its sandboxes together, MiB. */
const capacityMb = ({ hostMemoryMb }: Config): number =>
  hostMemoryMb || Math.floor((totalmem() / 1024 ** 2) * (7 / 8));
