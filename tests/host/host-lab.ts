// A host with real gVisor sandboxes and the real agent in this process, without gateway and edge: HostService in memory,
// agents reached directly, the checkpoint routes on a loopback port. `restart` is what a killed service's successor sees.
import { randomBytes } from "node:crypto";
import { mkdir, readdir, readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import type { Client } from "@connectrpc/connect";
import { createLog, silentLog, systemClock } from "@cloche/base";
import { defaults, newSandboxId } from "@cloche/protocol";
import { type HostService, type Machine, MachinePhase } from "@cloche/protocol/host";
import { openDirectoryStore } from "../../packages/host/src/blob/directory-store.ts";
import { obtainKeeper } from "../../packages/artifacts/src/programs/programs.ts";
import { createHost, GvisorDriver, type Host } from "../../packages/host/src/index.ts";
import type { ClusterParts } from "../../packages/host/src/host-parts.ts";
import type { HealthOptions } from "../../packages/host/src/drivers/health-watch.ts";
import { childGroups } from "../../packages/host/src/drivers/cgroup.ts";
import { clientOf, mortalGateways } from "../../packages/host/src/testing/fake-cluster.ts";
import { type Answer, DataPlaneCaller, testKeys } from "../../packages/host/src/testing/data-plane-caller.ts";
import { closePool } from "../../packages/host/src/pool/pool.ts";
import { type HostSetup, setUpHost } from "../../packages/host/src/setup.ts";
import { instanceTag } from "../../packages/host/src/sys/instance.ts";
import { listInstanceInventory } from "../fixtures/instance-inventory.ts";
import { agentBuild } from "../../packages/app/src/agent-build.ts";
import { askAgent } from "../fixtures/agent-call.ts";
import { LabNetwork } from "../fixtures/lab-network.ts";

/** Of a second host on this computer, and of one in a cluster. */
export interface LabPlace {
  /** Of its home. */
  suffix?: string;
  cache?: string;
  blobsDir?: string;
  /** Asked anew by each host. */
  cluster?: (lab: HostLab) => ClusterParts;
  /** Of a host that another process began. */
  home?: string;
}

export class HostLab {
  readonly home: string;
  readonly tag: string;
  readonly artifacts: HostSetup;
  readonly #keeper: string;
  readonly #network: LabNetwork;
  readonly #ready: number;
  readonly #health: HealthOptions | undefined;
  readonly #place: LabPlace;
  host!: Host;
  driver!: GvisorDriver;
  client!: Client<typeof HostService>;
  caller: DataPlaneCaller | undefined;

  constructor(
    home: string,
    artifacts: HostSetup,
    keeper: string,
    ready: number,
    health: HealthOptions | undefined,
    place: LabPlace,
  ) {
    this.#place = place;
    this.home = home;
    this.tag = instanceTag(home);
    this.artifacts = artifacts;
    this.#keeper = keeper;
    this.#network = new LabNetwork(this.tag);
    this.#ready = ready;
    this.#health = health;
  }

  get hangsDir(): string {
    return join(this.home, "log", "hangs");
  }

  /** `ready`: machines kept ready by the driver. `health`: how soon one that hangs is ended; default: never. */
  static async open(ready = 0, health?: HealthOptions, place: LabPlace = {}): Promise<HostLab> {
    const home = place.home ?? `/var/tmp/cloche-host-${process.pid}${place.suffix ?? ""}`;
    const cache = place.cache ?? HostLab.cache;
    const progress = (): void => undefined;
    const artifacts = await setUpHost({ home, cache, runsc: "", poolGb: 16, agent: agentBuild, progress });
    const lab = new HostLab(home, artifacts, await obtainKeeper(cache, progress), ready, health, place);
    await lab.restart();
    return lab;
  }

  static get cache(): string {
    return process.env["CLOCHE_CACHE"] || "/var/tmp/cloche-cache";
  }

  get blobsDir(): string {
    return this.#place.blobsDir ?? join(this.home, "blobs");
  }

  get runDir(): string {
    return `/run/cloche-${this.tag}`;
  }

  /** A new host over what is on the machine, as after kill -9 of the one before: nothing of it is told anything. */
  async restart(): Promise<void> {
    const { pool, native, runsc, agentRoot, templates } = this.artifacts;
    this.caller?.close();
    const driver = new GvisorDriver({
      tag: this.tag,
      runDir: join(this.runDir, "gvisor"),
      runsc: runsc.path,
      runscVersion: runsc.version,
      keeper: this.#keeper,
      native,
      agentRoot,
      network: this.#network,
      poolDir: pool.dir,
      ready: this.#ready,
      readyMost: this.#ready,
      hangsDir: this.hangsDir,
      // The driver of a service that was killed still looks, but does not know what its successor freezes.
      health: this.#health ?? { intervalMs: 3_600_000, hungAfterMs: 3_600_000 },
      log: process.env["LAB_LOG"] ? createLog({ level: "warn", file: process.env["LAB_LOG"] }) : silentLog,
      randomBytes,
    });
    this.driver = driver;
    const onExit = driver.onExit.bind(driver);
    // The one before is dead: it must not start again what the one after it ends.
    driver.onExit = (listener) =>
      onExit((id, reason) => {
        if (this.driver === driver) listener(id, reason);
      });
    const cluster = this.#place.cluster?.(this);
    this.host = createHost({
      poolDir: pool.dir,
      runDir: this.runDir,
      drivers: new Map([["gvisor", driver]]),
      templates,
      native,
      blobs: await openDirectoryStore(this.blobsDir),
      ...(cluster && {
        cluster: { ...cluster, gateways: mortalGateways(cluster, () => this.driver === driver) },
      }),
      dnsServers: ["198.18.0.53"],
      egress: this.#network,
      clock: systemClock,
      log: process.env["LAB_LOG"] ? createLog({ level: "warn", file: process.env["LAB_LOG"] }) : silentLog,
      randomBytes,
    });
    const { host } = this;
    this.client = clientOf(host);
    await host.start();
    await this.client.setVerificationKeys(testKeys);
    this.caller = await DataPlaneCaller.open(() => host);
  }

  spec(fields: object = {}) {
    return {
      sandboxId: newSandboxId(randomBytes),
      teamId: "team-t",
      name: "lab",
      template: "base",
      cpus: defaults.cpus,
      memoryMb: defaults.memoryMb,
      diskMb: 2_048,
      ...fields,
    };
  }

  create(fields: object = {}): Promise<Machine> {
    return this.client.createMachine({ spec: this.spec(fields) });
  }

  fork(source: string, fields: object = {}): Promise<Machine> {
    return this.client.forkMachine({ sourceSandboxId: source, spec: this.spec(fields) });
  }

  async destroyAll(): Promise<void> {
    const { machines } = await this.client.listMachines({});
    await Promise.all(machines.map(({ sandboxId }) => this.client.destroyMachine({ sandboxId })));
  }

  /** A call of the sandbox's agent. */
  async agent(sandboxId: string, method: string, path: string, body?: object): Promise<Answer> {
    const { agentHost, agentPort, channelKey } = await this.client.getMachine({ sandboxId });
    const agent = { host: agentHost, port: agentPort, key: channelKey, sandboxId, issuer: testKeys.issuer };
    const answer = await askAgent(agent, method, path, body === undefined ? undefined : JSON.stringify(body));
    return {
      status: answer.status,
      headers: new Headers(),
      body: JSON.parse(answer.body) as unknown,
    };
  }

  /** A call of a route that the host answers. */
  checkpoint(sandboxId: string, method: string, path: string, body?: object): Promise<Answer> {
    if (!this.caller) throw new Error("the lab is closed");
    return this.caller.call(sandboxId, method, path, body);
  }

  async exec(sandboxId: string, ...cmd: string[]): Promise<string> {
    const { status, body } = await this.agent(sandboxId, "POST", "/v1/exec", { cmd });
    if (status !== 200 || body["exit_code"] !== 0)
      throw new Error(`${cmd.join(" ")}: ${status} ${JSON.stringify(body)}`);
    return String(body["stdout"]).trim();
  }

  async phase(sandboxId: string): Promise<string> {
    return MachinePhase[(await this.client.getMachine({ sandboxId })).phase];
  }

  /** Everything but the pool that is on this machine because of us. */
  async leftovers(): Promise<string[]> {
    const { mounts, loopDevices, namespaces } = await listInstanceInventory(this.home, this.tag);
    const processes: string[] = [];
    for (const pid of await readdir("/proc")) {
      const command = await readFile(`/proc/${pid}/cmdline`, "utf8").catch(() => "");
      if (/^[0-9]+$/.test(pid) && command.includes(this.runDir))
        processes.push(command.replaceAll("\0", " "));
    }
    const { pool } = this.artifacts;
    return [
      ...mounts.filter((path) => path !== pool.dir),
      ...loopDevices.filter((path) => !path.endsWith("/pool.xfs")),
      ...namespaces,
      ...processes,
      ...(await childGroups(`/cloche-${this.tag}`)),
      ...(await readdir(join(pool.dir, "machines"))),
      ...(await readdir(join(pool.dir, "snapshots")).catch(() => [])),
    ];
  }

  async close(): Promise<void> {
    this.caller?.close();
    await this.host.stop({ suspend: false });
    await this.artifacts.native.close();
    await closePool(this.home);
    await mkdir(this.home, { recursive: true });
    await rm(this.home, { recursive: true, force: true });
    await rm(this.runDir, { recursive: true, force: true });
  }
}
