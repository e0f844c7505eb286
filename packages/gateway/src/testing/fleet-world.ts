/**
 * Gateways and hosts of a cluster on one database, for tests: hosts register, are lost and come back, and gateways come
 * and go.
 */
import { randomBytes } from "node:crypto";
import { Metrics, silentLog } from "@cloche/base";
import { type Database, openSqlite } from "../database/database.ts";
import type { HostDescription } from "../database/hosts.ts";
import { createGateway, type Gateway, type GatewayConfig } from "../gateway.ts";
import type { Listener } from "../http/listener.ts";
import { anAuditEntry, anOperation, aSandbox } from "./database-records.ts";
import { FakeClock, quiet } from "./fake-clock.ts";
import { FakeHost } from "./fake-host.ts";
import { FakeStorage } from "./fake-storage.ts";
import { type Answer, postCall, testConfig, testSigningKey } from "./gateway-fixture.ts";
import { Mortal } from "./mortal.ts";

/** Longer ago than any grace. */
const longOverMs = -60_000;
const leaseMs = 24 * 3_600_000;

export interface FleetGateway {
  gateway: Gateway;
  metrics: Metrics;
  call(method: string, body?: object): Promise<Answer>;
  /** kill -9. */
  kill(): Promise<void>;
}

export class FleetWorld {
  readonly clock: FakeClock;
  readonly database: Database;
  readonly hosts = new Map<string, FakeHost>();
  /** Open connections: host and address. */
  readonly connections: string[] = [];
  readonly storage = new FakeStorage();
  teamId = "";
  #secret = "";
  readonly #running: { gateway: Gateway; listener: Listener }[] = [];

  private constructor(clock: FakeClock, database: Database) {
    this.clock = clock;
    this.database = database;
  }

  /** Opens a world with these hosts registered, and no gateway. */
  static async open(hostIds: readonly string[]): Promise<FleetWorld> {
    const clock = new FakeClock();
    const world = new FleetWorld(clock, await openSqlite(":memory:", clock, { isShared: true }));
    for (const id of hostIds) await world.register(id);
    return world;
  }

  host(id: string): FakeHost {
    const host = this.hosts.get(id);
    if (host === undefined) throw new Error(`there is no host ${id}`);
    return host;
  }

  /** Starts or restarts a host. */
  async register(id: string, said: Partial<HostDescription> = {}): Promise<FakeHost> {
    const host = this.hosts.get(id) ?? new FakeHost();
    host.nowMs = () => this.clock.nowMs();
    this.hosts.set(id, host);
    host.storage = this.storage;
    host.nowMs = () => this.clock.nowMs();
    host.isCutOff = false;
    const row = await this.database.hosts.register({ ...aHost(id), ...said }, leaseMs);
    host.generation = row.generation;
    host.breakStreams();
    return host;
  }

  /** Makes a host lost for the gateways. */
  async lose(id: string): Promise<void> {
    this.host(id).isCutOff = true;
    this.host(id).isFrozen = true;
    this.host(id).breakStreams();
    // A renewal never shortens a lease, so register with a lease that ended long ago.
    await this.database.hosts.register(await this.row(id), longOverMs);
    await this.database.hosts.declareLost(0);
    await this.clock.advance(2_000);
  }

  /** Reserves memory of a host without telling any gateway. */
  async take(hostId: string, memoryMb: number): Promise<void> {
    const record = aSandbox({ hostId, memoryMb, teamId: this.teamId });
    const begin = anOperation({ sandboxId: record.id, owner: "another" });
    await this.database.sandboxes.insert([{ record, begin, audit: anAuditEntry() }], { room: "new" });
  }

  async row(id: string) {
    const row = (await this.database.hosts.all()).find((one) => one.id === id);
    if (row === undefined) throw new Error(`there is no host ${id}`);
    return row;
  }

  /** `mortal`: for a gateway that will be killed. */
  async start(
    owner: string,
    config: Partial<GatewayConfig> = {},
    mortal = new Mortal(),
  ): Promise<FleetGateway> {
    const metrics = new Metrics();
    const gateway = createGateway({
      metrics,
      database: mortal.database(this.database),
      hosts: ({ id, address }) => {
        const { client, close } = this.#connect(id, address);
        return { client: mortal.host(client), close };
      },
      owner,
      signingKeys: [testSigningKey()],
      config: { ...testConfig, ...config },
      clock: this.clock,
      log: silentLog,
      randomBytes,
    });
    await gateway.start();
    const listener = await gateway.listen("127.0.0.1", 0);
    this.#running.push({ gateway, listener });
    if (this.#secret === "") {
      this.teamId = (await gateway.addTeam("testers")).id;
      this.#secret = (await gateway.createApiKey(this.teamId, "test")).secret;
    }
    await quiet();
    // Hosts are watched.
    await this.clock.advance(5_000);
    await gateway.settled();
    const call = (method: string, body = {}) =>
      postCall(listener.port, method, body, { secret: this.#secret });
    const kill = async (): Promise<void> => {
      mortal.kill();
      await gateway.close();
    };
    return { gateway, metrics, call, kill };
  }

  #connect(id: string, address: string) {
    const connection = `${id} ${address}`;
    this.connections.push(connection);
    const close = (): void => void this.connections.splice(this.connections.indexOf(connection), 1);
    return { client: this.host(id).client, close };
  }

  async close(): Promise<void> {
    for (const { gateway } of this.#running) await gateway.close();
    await this.database.close();
  }
}

export const aHost = (id: string): HostDescription => ({
  id,
  address: `${id}.example:7090`,
  cpuClass: "",
  capacityMemoryMb: 8_192,
  version: "0.1.0",
  runtimes: ["gvisor"],
});
