/**
 * The sandbox's services (spec/contract.md, services: statuses, needs, restarts). The supervisor decides when each service starts;
 * services/service.ts keeps it running. Definitions are read when the disk is attached and forgotten when it is detached. After a crash of
 * the agent no service runs. `load` reads from the disk which ones should run; these are `unknown` until `startAll` has started them or
 * given them up.
 */
import {
  ClocheError,
  isServiceName,
  limits,
  type ServiceDefinition,
  type ServiceRecord,
} from "@cloche/protocol";
import type { DiskServices } from "../control/disk.ts";
import { Catalog, type ServiceFile } from "./catalog.ts";
import { badName } from "./definition.ts";
import { checkNeeds, inDependencyOrder } from "./graph.ts";
import { pause } from "./health.ts";
import type { Launcher } from "./launcher.ts";
import { Service } from "./service.ts";
import { ServiceLog } from "./service-log.ts";

export interface SupervisorParts {
  catalog: Catalog;
  launcher: Launcher;
  /** Called with output of any service. */
  onOutput(): void;
  startTimeoutMs?: number;
  stopTimeoutMs?: number;
  settleMs?: number;
  /** How long a restore or cold start waits for all services. */
  startedTogetherMs?: number;
}

/** After a restore or cold start, a service counts as started when it has run this long. Explicit starts answer at once. */
const settleMsDefault = 500;
const never = new AbortController().signal;

export class Supervisor implements DiskServices {
  readonly #parts: SupervisorParts;
  #services = new Map<string, Service>();
  /** Queues of changes, one for each name. */
  readonly #changes = new Map<string, Promise<unknown>>();
  #tidying: Promise<void> = Promise.resolve();

  constructor(parts: SupervisorParts) {
    this.#parts = parts;
  }

  list(): ServiceRecord[] {
    return [...this.#services.values()]
      .map((service) => service.record())
      .sort((one, other) => (one.name < other.name ? -1 : 1));
  }

  /** Throws 404 if no service of that name is defined. */
  get(name: string): Service {
    const service = this.#services.get(name);
    if (service === undefined) {
      throw new ClocheError("not_found", `there is no service ${JSON.stringify(name.slice(0, 100))}`);
    }
    return service;
  }

  /** Creates or replaces a definition; a running service uses it from its next start. Durable when it resolves. */
  put(name: string, definition: ServiceDefinition): Promise<ServiceRecord> {
    if (!isServiceName(name)) throw badName("the name", name);
    return this.#inTurn(name, async () => {
      const known = this.#services.get(name);
      if (known === undefined && this.#services.size >= limits.servicesPerSandbox) {
        throw new ClocheError(
          "resource_exhausted",
          `a sandbox has at most ${limits.servicesPerSandbox} services; delete one first`,
          { resource: "quota" },
        );
      }
      const file = { ...(known?.file() ?? neverStarted(definition)), definition };
      await this.#parts.catalog.save(name, file);
      const service = known ?? this.#create(name, file);
      service.definition = definition;
      this.#services.set(name, service);
      return service.record();
    });
  }

  /**
   * Starts a service after its needs, which start in parallel if the graph allows. Resolves when it runs or has failed (see its record).
   * Throws 409 naming an unknown need, a cycle, or a failed need; the service is then not started.
   */
  async start(name: string): Promise<ServiceRecord> {
    const service = this.get(name);
    if (!service.running) {
      checkNeeds(name, (other) => this.#needsOf(other));
      await this.#bringUp(name, new Map());
    }
    return service.record();
  }

  /** Stops a service and its whole tree. Services that need it run on. */
  async stop(name: string): Promise<ServiceRecord> {
    const service = this.get(name);
    await service.stop();
    return service.record();
  }

  /** Stops a service and removes its definition, log and container. */
  async delete(name: string): Promise<void> {
    this.get(name);
    await this.#inTurn(name, async () => {
      const service = this.get(name);
      await service.stop();
      this.#services.delete(name);
      await service.log.close();
      await this.#parts.launcher.remove(name);
      await this.#parts.catalog.remove(name);
    });
  }

  load(): void {
    this.#services = new Map();
    for (const [name, file] of this.#parts.catalog.load()) this.#services.set(name, this.#create(name, file));
    // In parallel to the starts; a failure only leaves unused files.
    this.#tidying = this.#parts.launcher.tidy(new Set(this.#services.keys())).catch(() => undefined);
  }

  async halt(): Promise<string[]> {
    const ran = this.running();
    await Promise.all([...this.#services.values()].map((service) => service.halt("kill")));
    return ran;
  }

  async shutDown(): Promise<void> {
    const ending = new Map<string, Promise<void>>();
    const end = (service: Service): Promise<void> => {
      const known = ending.get(service.name);
      if (known !== undefined) return known;
      const { promise, resolve } = Promise.withResolvers<void>();
      ending.set(service.name, promise); // set before its dependents are ended, so that a cycle of needs does not wait for itself
      const dependents = [...this.#services.values()].filter(
        (other) => other.active && !ending.has(other.name) && other.definition.needs?.includes(service.name),
      );
      void Promise.all(dependents.map(end))
        .then(() => service.halt("stop"))
        .then(resolve, resolve);
      return promise;
    };
    await Promise.all([...this.#services.values()].map(end));
  }

  async unload(): Promise<void> {
    const services = [...this.#services.values()];
    this.#services = new Map();
    await Promise.all([
      this.#tidying,
      ...this.#changes.values(),
      ...services.map((service) => service.log.close()),
    ]);
    await this.#parts.catalog.close();
  }

  async flush(): Promise<void> {
    await Promise.all([...this.#services.values()].map((service) => service.log.flush()));
    await this.#parts.catalog.flush();
  }

  running(): string[] {
    return this.#named((service) => service.running);
  }

  active(): string[] {
    return this.#named((service) => service.active);
  }

  wanted(): string[] {
    return this.#named((service) => service.wanted);
  }

  async startAll(names: readonly string[]): Promise<{ started: string[]; failed: string[] }> {
    const begun = new Map<string, Promise<boolean>>();
    const reached = new Map<string, boolean>();
    const startOne = async (name: string): Promise<void> => {
      try {
        checkNeeds(name, (other) => this.#needsOf(other));
        reached.set(name, await this.#bringUp(name, begun));
      } catch {
        reached.set(name, false); // the service's record and log have the reason
      }
    };
    const wanted = [...new Set(names)];
    const over = new AbortController();
    const togetherMs = this.#parts.startedTogetherMs ?? limits.servicesStartedTogetherMs;
    await Promise.race([Promise.all(wanted.map(startOne)), pause(togetherMs, over.signal)]);
    over.abort();
    if ([...reached.values()].includes(true)) await pause(this.#parts.settleMs ?? settleMsDefault, never);
    const started = wanted.filter(
      (name) => reached.get(name) === true && this.#services.get(name)?.serving === true,
    );
    for (const service of this.#services.values())
      if (!begun.has(service.name) || reached.has(service.name)) service.giveUp();
    const ordered = (list: string[]): string[] => inDependencyOrder(list, (name) => this.#needsOf(name));
    return { started: ordered(started), failed: ordered(wanted.filter((name) => !started.includes(name))) };
  }

  /** Starts a service once per call of start, after its needs. Answers whether it reached running. */
  #bringUp(name: string, begun: Map<string, Promise<boolean>>): Promise<boolean> {
    let start = begun.get(name);
    if (start === undefined) {
      start = this.#bringUpOnce(name, begun);
      start.catch(() => undefined); // all callers that wait for it get the error
      begun.set(name, start);
    }
    return start;
  }

  async #bringUpOnce(name: string, begun: Map<string, Promise<boolean>>): Promise<boolean> {
    const service = this.get(name);
    if (service.running) return true;
    if (service.active) return service.start();
    const { epoch } = service;
    const needs = service.definition.needs ?? [];
    if (needs.length > 0) {
      const waited = service.awaitNeeds();
      try {
        const outcomes = await Promise.allSettled(needs.map((need) => this.#bringUp(need, begun)));
        outcomes.forEach((outcome, index) => {
          if (outcome.status === "rejected") throw outcome.reason;
          if (!outcome.value) throw this.#needFailed(name, needs[index] ?? "");
        });
      } finally {
        waited();
      }
      if (service.epoch !== epoch || this.#services.get(name) !== service) {
        throw new ClocheError("aborted", `service "${name}" was stopped while its needs started`);
      }
    }
    return service.start();
  }

  #needFailed(name: string, need: string): ClocheError {
    const error = this.#services.get(need)?.record().error ?? "";
    const why = error === "" ? "it did not reach running" : error;
    return new ClocheError(
      "failed_precondition",
      `service "${name}" was not started: its need "${need}" failed: ${why}`,
      { reason: "needs_failed" },
    );
  }

  #needsOf(name: string): readonly string[] | undefined {
    const service = this.#services.get(name);
    return service === undefined ? undefined : (service.definition.needs ?? []);
  }

  #create(name: string, file: ServiceFile): Service {
    const { catalog, launcher, onOutput, startTimeoutMs, stopTimeoutMs } = this.#parts;
    return new Service(name, file, {
      launcher,
      log: new ServiceLog(catalog.logFolder(name)),
      save: (changed) => catalog.save(name, changed),
      onOutput,
      ...(startTimeoutMs === undefined ? {} : { startTimeoutMs }),
      ...(stopTimeoutMs === undefined ? {} : { stopTimeoutMs }),
    });
  }

  /** Names of the matching services, needs before their dependents. */
  #named(which: (service: Service) => boolean): string[] {
    const names = [...this.#services.values()].filter(which).map(({ name }) => name);
    return inDependencyOrder(names, (name) => this.#needsOf(name));
  }

  #inTurn<Answer>(name: string, change: () => Promise<Answer>): Promise<Answer> {
    const turn = (this.#changes.get(name) ?? Promise.resolve()).then(change, change);
    const settled = turn
      .catch(() => undefined)
      .then(() => {
        if (this.#changes.get(name) === settled) this.#changes.delete(name);
      });
    this.#changes.set(name, settled);
    return turn;
  }
}

const neverStarted = (definition: ServiceDefinition): ServiceFile => ({
  definition,
  wanted: false,
  failed: false,
  exitCode: null,
  error: "",
});
