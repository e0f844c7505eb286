/**
 * Composes the agent: one HTTP server over the parts that handle its requests. Parts start only when they are needed, because the
 * process must answer within tens of milliseconds of its start.
 */
import type { Server } from "node:http";
import type { Server as SecureServer } from "node:https";
import { join } from "node:path";
import { authorize, controlPrefix, healthPath } from "./auth/authorize.ts";
import { ControlSecret } from "./auth/control-secret.ts";
import type { BootConfig } from "./boot-config.ts";
import { ChannelKeys } from "./auth/channel-keys.ts";
import { channelOptions, endWithTheirKey } from "./http/channel-listener.ts";
import { boundStrangers } from "./http/strangers.ts";
import { Activity } from "./control/activity.ts";
import { SandboxDisk } from "./control/disk.ts";
import { guestServiceRoutes } from "./control/guest-service.ts";
import { Identity, writeIdentity } from "./control/identity.ts";
import { execRoutes, RunningExecs } from "./exec/index.ts";
import { fileRoutes } from "./files/index.ts";
import type { Route } from "./http/router.ts";
import { createHttpServer, type HttpServerOptions } from "./http/server.ts";
import type { Log } from "./log.ts";
import { ContainerLauncher } from "./containers/container-launcher.ts";
import {
  isAttachPath,
  processAttach,
  ProcessRecords,
  processRoutes,
  ProcessTable,
} from "./processes/index.ts";
import { portConnect, portConnectRoute } from "./ports/connect.ts";
import { portTunnel } from "./ports/tunnel.ts";
import { kernelRandomness } from "./snapshot/randomness.ts";
import { Catalog } from "./services/catalog.ts";
import { launcherByKind, plainLauncher } from "./services/launcher.ts";
import { serviceRoutes } from "./services/routes.ts";
import { Supervisor } from "./services/supervisor.ts";
import type { Guest, Spawner } from "./spawner/index.ts";
import { storeRoutes } from "./store/routes.ts";
import { Store, systemStoreClock } from "./store/store.ts";

export interface Agent {
  server: Server;
  /** Ends services and processes and closes the store. */
  close(): Promise<void>;
}

/** `program` is the command for a pull: Node and the agent's bundle. `plain`: no channel, for tests of the routes behind it. */
// oxlint-disable-next-line max-lines-per-function -- it puts the parts together, in order: a cut would only pass them along
export function createAgent(
  config: BootConfig,
  spawner: Spawner,
  log: Log,
  program: readonly string[],
  plain = false,
): Agent {
  const now = Date.now;
  const randomness = kernelRandomness();
  const identity = new Identity();
  const control = new ControlSecret(config.bootstrapControlSecretSha256);
  const channelKeys = new ChannelKeys(config.bootstrapChannelKey);
  const activity = new Activity(now);
  const store = new Store(join(config.diskPath, "cloche", "store.db"), systemStoreClock);
  const processes = new ProcessTable({
    randomBytes: (length) => randomness.bytes(length),
    nowMs: now,
    onActivity: () => activity.touch(),
    records: new ProcessRecords(join(config.diskPath, "cloche", "processes.json")),
    sandboxId: () => identity.sandboxId,
  });
  const services = new Supervisor({
    catalog: new Catalog(join(config.diskPath, "cloche", "services"), log),
    launcher: launcherByKind(
      plainLauncher(
        () => spawner.guest,
        () => identity.env,
        processes,
      ),
      new ContainerLauncher({
        folder: join(config.diskPath, "cloche"),
        spawner,
        processes,
        program,
        environment: () => identity.env,
        dnsServers: () => identity.dnsServers,
      }),
    ),
    onOutput: () => activity.touch(),
  });
  const running = new RunningExecs();
  spawner.onLost((container, error) => {
    if (container !== null) {
      log.error("all processes of a container ended with its guest", { container, error });
      return;
    }
    log.error("all processes of the sandbox ended with its guest, which is started again", { error });
    if (identity.hostname === "") return;
    nameGuestAgain(spawner, identity, log);
  });
  spawner.onOutOfMemory(({ name, memoryBytes }) =>
    log.warn("out of memory: a process was killed", { name, memory_bytes: memoryBytes }),
  );
  const guestProgram = join(config.nativeDir, "cloche-guest");
  const disk = new SandboxDisk(config.diskPath, guestProgram, spawner, store, services);

  const routes: Route[] = [
    { method: "GET", path: healthPath, handle: () => ({ ok: true }) },
    ...guestServiceRoutes({
      identity,
      control,
      channelKeys,
      disk,
      diskPath: config.diskPath,
      services,
      spawner,
      activity,
      randomness,
      log,
      guestProgram,
      runningExecs: () => running.count,
      processes,
    }),
    ...execRoutes({ guest: () => spawner.guest, env: () => identity.env, running, processes }),
    ...processRoutes({ guest: () => spawner.guest, env: () => identity.env, table: processes }),
    ...fileRoutes(() => spawner.guest),
    ...storeRoutes(store, now),
    ...serviceRoutes(services, { running, processes }),
    portConnectRoute,
  ];
  const handling: HttpServerOptions = {
    routes,
    upgrades: [
      portTunnel(config.port, () => activity.touch()),
      portConnect(config.port, () => activity.touch()),
      processAttach(processes, () => activity.touch()),
    ],
    authorize: ({ request, path }) => {
      authorize(request, path, control, identity.verifier, now());
      if (path.startsWith("/v1/")) disk.require();
      return path.startsWith(controlPrefix) || path === healthPath ? undefined : identity.beingWritten;
    },
    // Activity is an open request, and an attachment only while data passes through it: an attached process prevents dozing, but
    // must not prevent the idle suspension. The host's own calls do not count.
    track: (path) => {
      if (!path.startsWith("/v1/") && !path.startsWith("/cloche/")) return noop;
      if (!isAttachPath(path)) return activity.begin();
      activity.touch();
      return noop;
    },
    randomBytes: (length) => randomness.bytes(length),
    log,
  };
  const server = createHttpServer(handling, plain ? undefined : channelOptions(channelKeys));
  if (!plain) {
    endWithTheirKey(server as SecureServer, channelKeys);
    boundStrangers(server as SecureServer);
  }
  return {
    server,
    close: async () => {
      server.close();
      server.closeAllConnections();
      await processes.releaseDisk();
      await disk.detach();
    },
  };
}

/** Waits for the guest that the spawner starts again, and sets its host name and boot id. */
function nameGuestAgain(spawner: Spawner, identity: Identity, log: Log, attemptsLeft = 100): void {
  const timer = setTimeout(() => {
    let guest: Guest;
    try {
      ({ guest } = spawner);
    } catch {
      if (attemptsLeft > 0) nameGuestAgain(spawner, identity, log, attemptsLeft - 1);
      return;
    }
    const { hostname, dnsServers, bootId } = identity;
    void writeIdentity(guest, { hostname, dnsServers, machineId: undefined, bootId }, log);
  }, 200);
  timer.unref();
}

const noop = (): void => undefined;
