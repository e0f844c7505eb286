/** The membership of a host or an edge in its cluster: joins, renews the certificate, and connects to any of the gateways. */
import { join } from "node:path";
import { type Clock, type Config, type Log, systemClock } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import { ClusterService } from "@cloche/protocol/host-registry";
import {
  connectToGateways,
  type Credentials,
  KeptCredentials,
  openCredentials,
  type Role,
  type RpcConnection,
  writeCredentials,
} from "@cloche/trust";
import { type Client, Code, ConnectError, createClient } from "@connectrpc/connect";
import type { Stops } from "../parts/stops.ts";

export interface Membership {
  /** The present certificate. */
  readonly credentials: () => Credentials;
  onRenewed(listener: (renewed: Credentials) => void): void;
  readonly gateways: RpcConnection;
  readonly cluster: Client<typeof ClusterService>;
}

/** Joins the cluster unless this home has joined already; waits until a gateway answers. */
export async function becomeMember(
  config: Config,
  role: Exclude<Role, "gateway">,
  log: Log,
  stops: Stops,
): Promise<Membership> {
  const folder = join(config.home, "cluster");
  const { nodeId: id, clusterGateways, joinToken: token } = config;
  const first = await untilReached(systemClock, log, () =>
    openCredentials({
      folder,
      identity: { role, id },
      gateways: clusterGateways,
      token,
      nowMs: systemClock.nowMs(),
    }),
  );
  const gateways = connectToGateways(clusterGateways, () => kept.current);
  const cluster = createClient(ClusterService, gateways.transport);
  const kept = new KeptCredentials({
    first,
    async renew(certificateRequest) {
      const { certificate } = await cluster.renewCertificate({ certificateRequest }, { timeoutMs: renewMs });
      return certificate;
    },
    save: (renewed) => writeCredentials(folder, renewed),
    clock: systemClock,
    log: log.child({ part: "certificate" }),
  });
  kept.start();
  stops.add("certificate", async () => {
    await kept.close();
    gateways.close();
  });
  return {
    credentials: () => kept.current,
    onRenewed: (listener) => kept.onRenewed(listener),
    gateways,
    cluster,
  };
}

/** Undefined: the gateway is of a release that does not say. Throws `unavailable` when none answers. */
export async function installationOf({
  cluster,
}: Pick<Membership, "cluster">): Promise<{ id: string; storage: string } | undefined> {
  try {
    return await cluster.getInstallation({}, { timeoutMs: renewMs });
  } catch (cause) {
    const { code, rawMessage } = ConnectError.from(cause);
    if (code === Code.Unimplemented) return undefined;
    throw new ClocheError("unavailable", `no gateway named its cluster: ${rawMessage}`, { cause });
  }
}

const renewMs = 15_000;
const againMs = 1_000;
const announceEveryMs = 30_000;

/** Repeats the call until a gateway answers, because the parts of a cluster start in any order. Throws any refusal. */
export async function untilReached<T>(
  clock: Pick<Clock, "sleep" | "monotonicMs">,
  log: Log,
  call: () => Promise<T>,
): Promise<T> {
  for (let announcedAtMs = Number.NEGATIVE_INFINITY; ; ) {
    try {
      return await call();
    } catch (error) {
      if (!(error instanceof ClocheError) || error.code !== "unavailable") throw error;
      if (clock.monotonicMs() - announcedAtMs >= announceEveryMs) {
        announcedAtMs = clock.monotonicMs();
        log.warn({ err: error }, "no gateway answers; trying again");
      }
      await clock.sleep(againMs);
    }
  }
}
