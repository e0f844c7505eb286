/**
 * The role `edge`: TLS for clients, as on a single machine. Routes come from any of the gateways. Agents and checkpoint routes are
 * reached through the hosts' ports. While all gateways are away the edge goes on with the routes it has.
 */
import { join } from "node:path";
import { type Config, type Log, systemClock } from "@cloche/base";
import { type Edge, type HostLinks, type TlsFiles } from "@cloche/edge";
import { ClocheError } from "@cloche/protocol";
import { RouteService } from "@cloche/protocol/edge";
import { clientSettings } from "@cloche/trust";
import { ConnectError, createClient } from "@connectrpc/connect";
import { edgeUrl } from "../addresses.ts";
import { becomeMember, type Membership, untilReached } from "../cluster/membership.ts";
import { startEdge } from "../parts/edge.ts";
import { newMetrics, startOperatorPort } from "../parts/operator.ts";
import { answersUnderWay, keptMs, Stops } from "../parts/stops.ts";
import type { ProgressPrinter } from "../progress.ts";
import type { Running } from "../serve.ts";
import { readPair } from "../setup/authority.ts";
import { checkRole } from "../cluster/role-settings.ts";
import { reportStatus } from "./role-status.ts";

/** Interval at which the operator's files and the gateways' certificate are checked for changes. */
const certificateEveryMs = 60_000;
const callMs = 10_000;

export async function startEdgeRole(config: Config, log: Log, progress: ProgressPrinter): Promise<Running> {
  checkRole("edge", config);
  const stops = new Stops(log);
  await stops.begin(() => startParts(config, log, progress, stops));
  return { orders: {}, waiting: () => stops.waiting, stop: () => stops.unwind() };
}

async function startParts(config: Config, log: Log, progress: ProgressPrinter, stops: Stops): Promise<void> {
  const metrics = newMetrics();
  progress.step("joining the cluster");
  const member = await becomeMember(config, "edge", log, stops);
  let edge: Edge | undefined;
  await startOperatorPort(config, metrics, stops, async () => {
    if (edge === undefined) throw new ClocheError("unavailable", "the edge is starting");
    edge.ready();
  });
  const tls = await untilReached(systemClock, log, () => servedCertificate(config, member));
  const links: HostLinks = {
    tlsTo: (id) => clientSettings(member.credentials(), { role: "host", id }),
  };
  progress.step("routes");
  const routes = createClient(RouteService, member.gateways.transport);
  const given = { tls, routes, links };
  edge = await startEdge(config, given, log, metrics);
  const started = edge;
  stops.add("edge", () => started.stop(config.drainSeconds * 1_000, keptMs(config)), answersUnderWay);
  followCertificate(config, member, tls, (next) => started.setTls(next), log, stops);
  stops.add("readiness", async () => started.drain());
  const fields = { edge_url: edgeUrl(config), base_domain: config.baseDomain };
  const status = await reportStatus(config, "edge", fields, stops);
  log.info({ edge: status.edge_url, node_id: config.nodeId }, "ready");
}

/** The operator's certificate (`<home>/tls/edge.pem`, `edge-key.pem`), else the one that all edges of the cluster share. */
async function servedCertificate(config: Config, { cluster }: Membership): Promise<TlsFiles> {
  const own = await readPair(join(config.home, "tls"), "edge");
  if (own !== undefined) return own;
  try {
    const { certificate, key } = await cluster.getEdgeCertificate({}, { timeoutMs: callMs });
    return { cert: certificate, key };
  } catch (cause) {
    const why = ConnectError.from(cause).rawMessage;
    throw new ClocheError("unavailable", `no gateway gave the edges' certificate: ${why}`, { cause });
  }
}

function followCertificate(
  config: Config,
  member: Membership,
  first: TlsFiles,
  use: (tls: TlsFiles) => void,
  log: Log,
  stops: Stops,
): void {
  const stopping = new AbortController();
  stops.add("served certificate", async () => stopping.abort());
  let current = first;
  void (async () => {
    for (;;) {
      await systemClock.sleep(certificateEveryMs, stopping.signal);
      try {
        const next = await servedCertificate(config, member);
        if (next.cert === current.cert) continue;
        use(next);
        current = next;
        log.info({}, "clients are served with a new certificate");
      } catch (error) {
        log.debug({ err: error }, "check of the served certificate failed");
      }
    }
  })().catch(() => undefined);
}
