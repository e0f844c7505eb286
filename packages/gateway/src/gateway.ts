/**
 * Puts the gateway together from database, hosts, keys and settings. Provides the public service, the edge's
 * RouteService and the calls of set-up.
 *
 *   created ──start──▶ serving (reconciles, expires, answers) ──close──▶ closed
 *
 * `close` drops running operations; the database keeps them, and the next start continues them. Machines are not
 * touched.
 */
import { type Clock, type Log, Metrics } from "@cloche/base";
import {
  ClocheError,
  defaults,
  newTeamId,
  type RandomBytes,
  type TeamLimits,
  type VerificationKey,
} from "@cloche/protocol";
import type { RouteService } from "@cloche/protocol/edge";
import { ApiKeyService, SandboxService } from "@cloche/protocol/public";
import type { HostStorageService } from "@cloche/protocol/host-registry";
import type { HandlerContext, ServiceImpl } from "@connectrpc/connect";
import type { Database } from "./database/database.ts";
import type { Team } from "./database/teams.ts";
import { Fleet, type FleetListener } from "./hosts/fleet.ts";
import type { HostConnector } from "./hosts/fleet-host.ts";
import { HostWatches, watchesAll } from "./hosts/host-watches.ts";
import { ReportedEvents } from "./hosts/reported-events.ts";
import { Placement, type PlacementStrategy } from "./hosts/placement.ts";
import { CallLimits } from "./http/call-limits.ts";
import { GatewayCount } from "./http/gateway-count.ts";
import type { CorsOrigins } from "./http/cors.ts";
import { gatewayMetrics } from "./gateway-metrics.ts";
import { createHandler, type GatewayHandler } from "./http/handler.ts";
import { listen, type Listener } from "./http/listener.ts";
import { AuditLog } from "./lifecycle/audit-log.ts";
import { Checkpointer } from "./lifecycle/checkpointer.ts";
import { ChangeFollower } from "./lifecycle/change-follower.ts";
import { Expiry } from "./lifecycle/expiry.ts";
import type { HostCalls, HostClient } from "./hosts/host-calls.ts";
import { HostComparison } from "./lifecycle/host-comparison.ts";
import { Drains } from "./lifecycle/drains.ts";
import { type Orphan, Orphans } from "./lifecycle/orphans.ts";
import { LostHosts } from "./lifecycle/lost-hosts.ts";
import { Relocation } from "./lifecycle/relocation.ts";
import { Lifecycle } from "./lifecycle/lifecycle.ts";
import { OperationLeases } from "./lifecycle/operation-leases.ts";
import { OperationRunner } from "./lifecycle/operation-runner.ts";
import { Reconciler } from "./lifecycle/reconciler.ts";
import { ReadyMachines } from "./lifecycle/ready-machines.ts";
import { Records } from "./lifecycle/records.ts";
import { UsageWatch } from "./lifecycle/usage-watch.ts";
import { gatewayLimits } from "./limits.ts";
import { routeService } from "./routes/route-service.ts";
import { LinkKeys } from "./routes/link-keys.ts";
import { RouteTable } from "./routes/route-table.ts";
import { apiKeyService, createApiKey, type CreatedApiKey } from "./rpc/api-key-service.ts";
import { Authenticator, isGoodKey, secretHash } from "./rpc/caller.ts";
import { Creation } from "./rpc/creation.ts";
import { sandboxService } from "./rpc/sandbox-service.ts";
import { storageService } from "./storage/storage-service.ts";
import { teamCheckpoints } from "./storage/team-checkpoints.ts";
import type { SigningKey } from "./tokens/signing-keys.ts";
import { TokenIssuer } from "./tokens/token-issuer.ts";

export interface GatewayConfig {
  /** `iss` of the tokens; must stay the same over restarts. */
  issuer: string;
  baseDomain: string;
  /** The port that clients reach the edge on; 443 is left out of domains. */
  edgePort: number;
  /** The address of all sandboxes, `data_plane_url` of answers with a token: a URL without a slash at its end. */
  dataPlaneUrl: string;
  tokenLifetimeSeconds: number;
  corsOrigins: CorsOrigins;
  /** What one team may have and do. Default: `defaults.teamLimits`. */
  limits?: Partial<TeamLimits>;
  /** In one process: names the host in records and routes. Default `local`. */
  hostId?: string;
  /** In a cluster: which host a new machine goes to (hosts/placement.ts). Default `spread`. */
  placement?: PlacementStrategy;
}

/**
 * One host, called in memory; or the hosts of the table `hosts`, each called at its address, which also needs `owner`.
 */
export type GatewayHosts =
  | { host: HostClient; hosts?: undefined }
  | { host?: undefined; hosts: HostConnector };

export type GatewayOptions = GatewayHosts & GatewayParts;

export interface GatewayParts {
  database: Database;
  /** Newest first: the first signs, all verify. */
  signingKeys: readonly SigningKey[];
  config: GatewayConfig;
  clock: Clock;
  log: Log;
  randomBytes: RandomBytes;
  /**
   * Names this process among several gateways of the database; a new name at every start. Default: the gateway is
   * alone, and continues every operation that it finds.
   */
  owner?: string;
  /** Throws a ClocheError that names what else is not ready, such as a full disk. */
  alsoReady?: () => Promise<void>;
  /** Receives the gateway's metrics; default: they are not exposed. */
  metrics?: Metrics;
}

export interface Gateway {
  /** Begins to follow the hosts, continue operations and end expired sandboxes. Call it before the first request. */
  start(): Promise<void>;
  readonly handler: GatewayHandler;
  /** Serves the handler on HTTP/1.1 and HTTP/2 without TLS. Port 0: any free one. */
  listen(host: string, port: number): Promise<Listener>;
  /** Implementation of cloche.edge.v1.RouteService, for a router in memory or behind mutual TLS. */
  readonly routeService: ServiceImpl<typeof RouteService>;
  /**
   * Implementation of cloche.host.v1.HostStorageService, behind mutual TLS. `hostOf`: the host of the caller's
   * certificate; undefined: the caller is no host.
   */
  storageService(
    hostOf: (context: HandlerContext) => string | undefined,
  ): ServiceImpl<typeof HostStorageService>;
  readonly verificationKeys: VerificationKey[];
  /** Signs with the first key once host and edges know it; keys left out no longer verify afterwards. */
  rotateKeys(keys: readonly SigningKey[]): Promise<void>;
  teams(): Promise<Team[]>;
  addTeam(name: string): Promise<Team>;
  /** Only the answer has the secret. `expiresInSeconds` 0: never. `secret`: a former secret, to accept again. */
  createApiKey(
    teamId: string,
    name: string,
    expiresInSeconds?: number,
    secret?: string,
  ): Promise<CreatedApiKey>;
  /** Whether calls with this secret are accepted; `unknown`: the database has never had it. */
  apiKeyState(secret: string): Promise<"good" | "refused" | "unknown">;
  /** The team of an API key's secret; undefined: calls with it are not accepted. Counts as no call of the team. */
  teamOfKey(secret: string): Promise<string | undefined>;
  /** Machines that the database does not know. */
  readonly orphans: {
    list(): Promise<Orphan[]>;
    /** `teamId` empty: its own team. */
    adopt(sandboxId: string, teamId: string): Promise<Orphan>;
    remove(sandboxId: string): Promise<Orphan>;
  };
  /** Throws a ClocheError naming what is not ready. */
  ready(): Promise<void>;
  /** From now on the gateway is not ready, and each answer ends its connection. Calls are still answered. */
  drain(): void;
  /** Resolves when the running comparisons of records and machines are done; for set-up and tests. */
  settled(): Promise<void>;
  /** Closes the gateway; first only answers calls on connections used less than `idleMs` ago (default 0). */
  close(idleMs?: number): Promise<void>;
}

/** Ends the wait for the edges. Created once, because creating an error captures a stack. */
const isDelivered = new Error("the edges know the routes");

// oxlint-disable-next-line max-lines-per-function -- puts the parts together, in order: a cut would only pass them along
export function createGateway(options: GatewayOptions): Gateway {
  const { database, clock, log, randomBytes, config } = options;
  const nowMs = (): number => clock.nowMs();
  const closed = new AbortController();
  const stopping = new AbortController();
  const listeners: Listener[] = [];

  const limits: TeamLimits = { ...defaults.teamLimits, ...config.limits };
  const audit = new AuditLog(database.audit, clock, randomBytes, log);
  const hostId = config.hostId ?? "local";
  const owner = options.owner ?? "";
  const source =
    options.hosts === undefined
      ? { id: hostId, client: options.host }
      : { hosts: database.hosts, connect: options.hosts };
  const fleet = new Fleet(source, clock, log);
  const metrics = gatewayMetrics(
    options.metrics ?? new Metrics(),
    () => table.countByState(),
    fleet,
    () => orphans.count,
  );
  const reachable = (): string[] => fleet.ids().filter((id) => fleet.isSyncedWith(id));
  const onGained = (id: string): void => {
    reportedEvents.gained(id);
    comparison.gained(id);
  };
  const gateways = (): number => gatewayCount?.count ?? 1;
  const ownWatches = fleet.isCluster
    ? new HostWatches({ hosts: database.hosts, owner, reachable, onGained, gateways, clock, log })
    : undefined;
  const placement = new Placement({
    fleet,
    strategy: config.placement ?? "spread",
    randomBytes,
    onRefused: () => metrics.placementWaits.add({}),
  });
  const watches = ownWatches ?? watchesAll;
  const records = new Records(database.sandboxes, nowMs);
  const readyMachines = new ReadyMachines(records);
  const linkKeys = new LinkKeys();
  const table = new RouteTable(fleet, (id) => linkKeys.of(id));
  const tokens = new TokenIssuer({
    issuer: config.issuer,
    keys: options.signingKeys,
    lifetimeSeconds: config.tokenLifetimeSeconds,
    nowMs,
    randomBytes,
  });
  const relocation = new Relocation({ fleet, placement, records, clock });
  const runner = new OperationRunner({ database, records, fleet, relocation, audit, metrics, clock, log });
  const { operations } = database;
  const leases = owner === "" ? undefined : new OperationLeases({ operations, runner, owner, clock, log });
  const gatewayCount = owner === "" ? undefined : new GatewayCount(database.gateways, owner, clock, log);
  const { sandboxes: sandboxesMax } = limits;
  const lifecycle = new Lifecycle({
    database,
    records,
    runner,
    audit,
    clock,
    log,
    randomBytes,
    isCluster: fleet.isCluster,
    relocation,
    sandboxesMax,
    owner,
  });
  const pushKeys = (host: HostCalls, keys: VerificationKey[] = tokens.verificationKeys): Promise<void> =>
    host.setVerificationKeys(config.issuer, keys, { signal: closed.signal, requestId: "" });
  const usage = new UsageWatch(database.usage, clock, log);
  const orphans = new Orphans({ database, records, fleet, audit, clock, log });
  const reconciler = new Reconciler({
    database,
    records,
    runner,
    lifecycle,
    fleet,
    watches,
    orphans,
    usage,
    audit,
    clock,
    log,
    randomBytes,
    owner,
  });
  const comparison = new HostComparison({
    database,
    fleet,
    watches,
    reconciler,
    orphans,
    usage,
    clock,
    log,
    pushKeys: (host) => pushKeys(host),
  });
  const reportedEvents = new ReportedEvents(
    watches,
    (event) => void audit.reported(event, fleet.isCluster),
    clock,
  );
  const expiry = new Expiry(database, records, lifecycle, clock, log);
  const { sandboxes } = database;
  const checkpoints = teamCheckpoints(fleet, database.storedNames);
  const shared = { database, records, runner, lifecycle, fleet, watches, placement, audit, clock, log };
  const lostHosts = fleet.isCluster
    ? new LostHosts({ ...shared, checkpoints, randomBytes, owner })
    : undefined;
  const drains = fleet.isCluster ? new Drains(shared) : undefined;
  const checkpointer = new Checkpointer({ sandboxes, fleet, checkpoints, audit, clock, log, randomBytes });

  const readAll = (): Promise<void> => records.readAll(table.ids());
  const follower =
    database.changeLog &&
    new ChangeFollower({
      changeLog: database.changeLog,
      clock,
      log,
      onChanged: (ids) => records.refresh(ids),
      readAll,
    });

  let isDraining = false;
  const drain = (): void => {
    isDraining = true;
    for (const listener of listeners) listener.drain();
  };
  let hasServed = false;
  async function ready(): Promise<void> {
    if (isDraining || closed.signal.aborted) throw new ClocheError("unavailable", "the gateway is stopping");
    await database.ping();
    await options.alsoReady?.();
    const silent = fleet.isCluster ? "no host has" : "the host has not";
    hasServed ||= fleet.isSynced;
    // While all hosts of a cluster are away, the gateway still answers calls that need no host.
    if (!(fleet.isCluster ? hasServed : fleet.isSynced))
      throw new ClocheError("unavailable", `${silent} reported its machines yet`);
  }

  async function routesDelivered(): Promise<void> {
    const enough = new AbortController();
    const waited = clock.sleep(gatewayLimits.routeDeliveryMs, enough.signal).catch(() => undefined);
    await Promise.race([table.delivered(), waited]);
    enough.abort(isDelivered);
  }

  const fleetListener: FleetListener = {
    synced(host) {
      table.hostChanged(host);
      comparison.synced(host);
    },
    changed(host, id) {
      if (watches.isMine(host) && !table.isElsewhere(id, host)) usage.changed(id, fleet.machine(id, host));
      table.machineChanged(id);
      reconciler.changed(host, id);
    },
    idle: (host, id) => reconciler.idle(host, id),
    ready: (host, machines) => readyMachines.offer(host, machines),
    audit: (host, event) => reportedEvents.report(host, event),
    hostChanged(host) {
      table.hostChanged(host);
      if (fleet.row(host)?.awaitsAdmission === true) comparison.gained(host);
      if (fleet.isLost(host)) lostHosts?.hostLost(host);
    },
  };

  const handler = createHandler({
    routes(router) {
      router.service(
        SandboxService,
        sandboxService({
          database,
          lifecycle,
          placement,
          relocation,
          creation: new Creation(fleet, checkpoints, readyMachines, clock, randomBytes),
          ready: readyMachines,
          checkpoints,
          fleet,
          tokens,
          audit,
          clock,
          log,
          randomBytes,
          domains: { baseDomain: config.baseDomain, edgePort: config.edgePort },
          dataPlaneUrl: config.dataPlaneUrl,
          isCluster: fleet.isCluster,
          routesDelivered,
        }),
      );
      router.service(ApiKeyService, apiKeyService({ apiKeys: database.apiKeys, audit, clock, randomBytes }));
    },
    authenticator: new Authenticator(database.apiKeys, clock, log),
    callLimits: new CallLimits(limits, clock, gateways),
    corsOrigins: config.corsOrigins,
    ready,
    stopping: stopping.signal,
    metrics,
    clock,
    log,
  });

  return {
    handler,
    routeService: routeService({
      table,
      lifecycle,
      fleet,
      records,
      portLinks: database.portLinks,
      fileLinks: database.fileLinks,
      tokens,
      audit,
      nowMs,
      closed: closed.signal,
    }),

    storageService: (hostOf) => storageService(database, hostOf),

    async start() {
      linkKeys.secret = await database.fileLinks.secret(randomBytes(LinkKeys.secretBytes));
      records.listen((id, record) => table.recordChanged(id, record));
      await (follower === undefined ? readAll() : follower.start());
      await lifecycle.start();
      reconciler.start();
      comparison.start();
      await fleet.start(fleetListener);
      leases?.start();
      await gatewayCount?.start();
      ownWatches?.start();
      expiry.start();
      checkpointer.start();
      lostHosts?.start();
      drains?.start();
      audit.start();
    },

    async listen(address, port) {
      const listener = await listen(handler, address, port);
      listeners.push(listener);
      return listener;
    },

    get verificationKeys() {
      return tokens.verificationKeys;
    },

    async rotateKeys(keys) {
      await tokens.rotate(keys, async (verification) => {
        await fleet.everywhere("a change of keys", (host) => pushKeys(host, verification));
        table.keysChanged();
        await routesDelivered();
      });
    },

    teams: () => database.teams.all(),

    async addTeam(name) {
      const team: Team = { id: newTeamId(randomBytes), name, createdAtMs: nowMs() };
      await database.teams.insert(team);
      return team;
    },

    async createApiKey(teamId, name, expiresInSeconds = 0, secret = undefined) {
      const caller = { teamId, actor: "system:setup", requestId: "" };
      const needs = { apiKeys: database.apiKeys, audit, clock, randomBytes };
      return await createApiKey(needs, caller, { name, expiresInSeconds, secret });
    },

    async apiKeyState(secret) {
      const key = await database.apiKeys.findByHash(secretHash(secret));
      if (key === undefined) return "unknown";
      return isGoodKey(key, nowMs()) ? "good" : "refused";
    },

    async teamOfKey(secret) {
      const key = await database.apiKeys.findByHash(secretHash(secret));
      return key !== undefined && isGoodKey(key, nowMs()) ? key.teamId : undefined;
    },

    orphans: {
      list: () => orphans.list(),
      async adopt(sandboxId, teamId) {
        const adopted = await orphans.adopt(sandboxId, teamId);
        await reconciler.check(adopted.hostId, sandboxId);
        return adopted;
      },
      remove: (sandboxId) => orphans.remove(sandboxId),
    },

    ready,
    drain,
    async settled() {
      await comparison.settle();
      await reconciler.settle();
    },

    async close(idleMs = 0) {
      drain();
      if (idleMs > 0) await Promise.all(listeners.map((listener) => listener.quiet(idleMs)));
      stopping.abort(new Error("the gateway is closing"));
      lifecycle.close();
      await Promise.all(listeners.map((listener) => listener.close()));
      closed.abort(new Error("the gateway is closing"));
      await Promise.all([
        follower?.close(),
        expiry.close(),
        checkpointer.close(),
        lostHosts?.close(),
        drains?.close(),
        comparison.close(),
        fleet.close(),
        reconciler.close(),
        audit.close(),
      ]);
      await runner.close();
      await leases?.close();
      await gatewayCount?.close();
      await ownWatches?.close();
      await usage.close();
    },
  };
}
