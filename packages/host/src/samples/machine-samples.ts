/**
 * Samples of the resources that every machine used in the last hour, one each 10 s while it runs, and its present use. A dozing machine
 * is not measured: it repeats its last sample, with no CPU time.
 *
 * Owns the histories, in memory: they survive a suspension but not a restart of the service. Their total memory is bounded: with very
 * many machines, each keeps fewer samples.
 */
import { type Clock, type Log, Polls } from "@cloche/base";
import type { MachineRecord } from "../machines/machine-record.ts";
import type { EgressControl } from "../network/egress-control.ts";
import type { LinkTraffic } from "../network/traffic.ts";
import { atRest, measure, type Measured, type MeasureParts } from "./measure.ts";
import { sampleEveryMs, type Sample, SampleHistory } from "./sample-history.ts";

const keptMs = 3_600_000;
const keptRunsMax = keptMs / sampleEveryMs;
/** Most runs of all machines together, some 64 MiB. Each machine keeps runsMin in any case. */
const keptRunsTotal = 500_000;
const runsMin = 30;
/** Within this time the same answer is given again. */
const freshMs = 1_000;

interface Known {
  history: SampleHistory;
  /** The base of the next CPU share. */
  before?: { atMs: number; cpuMs: number } | undefined;
  now?: Sample;
}

export interface MachineSamplesParts extends MeasureParts {
  egress: Pick<EgressControl, "traffic">;
  clock: Clock;
  log: Log;
}

export class MachineSamples {
  readonly #parts: MachineSamplesParts;
  readonly #measure: typeof measure;
  readonly #runsTotal: number;
  readonly #known = new Map<string, Known>();
  readonly #polls: Polls;
  readonly #stop = new AbortController();
  #running: Promise<void> | undefined;
  #traffic: { untilMs: number; links: Promise<ReadonlyMap<string, LinkTraffic>> } | undefined;

  /** `runsTotal`: most runs of all machines together. */
  constructor(parts: MachineSamplesParts, measureOne: typeof measure = measure, runsTotal = keptRunsTotal) {
    this.#parts = parts;
    this.#measure = measureOne;
    this.#runsTotal = runsTotal;
    this.#polls = new Polls(parts.clock);
  }

  start(): void {
    this.#running = this.#run();
  }

  async stop(): Promise<void> {
    this.#stop.abort(new Error("the host is stopping"));
    await this.#running;
  }

  /** How many numbers are kept in memory for all machines. */
  get size(): number {
    return [...this.#known.values()].reduce((sum, { history }) => sum + history.size, 0);
  }

  /** Oldest first. */
  history(id: string): Sample[] {
    const { history } = this.#known.get(id) ?? {};
    history?.keep(this.#parts.clock.nowMs() - keptMs, keptRunsMax);
    return history?.all() ?? [];
  }

  async now(record: MachineRecord): Promise<Sample> {
    const atMs = this.#parts.clock.nowMs();
    if (record.phase !== "running") return await atRest(this.#parts, record, atMs);
    const known = this.#of(record.id);
    if (known.now !== undefined && atMs - known.now.atMs < freshMs) return known.now;
    const asleep = this.#asleep(record, known, atMs);
    if (asleep !== undefined) return asleep;
    const measured = await this.#measure(this.#parts, record, atMs, await this.#links());
    known.now = this.#sampleOf(record, known, measured);
    return known.now;
  }

  /** Takes a sample of every machine that runs. `atMs`: a multiple of sampleEveryMs. */
  async sample(atMs: number): Promise<void> {
    const all = this.#parts.machines.all();
    this.#forget(new Set(all.map(({ id }) => id)), atMs);
    const running = all.filter(({ phase }) => phase === "running");
    await this.#polls.each(
      running,
      (record) => this.#sampleOne(record, atMs),
      () => this.#stop.signal.aborted,
    );
  }

  async #run(): Promise<void> {
    const { clock } = this.#parts;
    const { signal } = this.#stop;
    while (!signal.aborted) {
      const nextMs = (Math.floor(clock.nowMs() / sampleEveryMs) + 1) * sampleEveryMs;
      await clock.sleep(nextMs - clock.nowMs(), signal).catch(() => undefined);
      if (!signal.aborted) await this.sample(nextMs);
    }
  }

  async #sampleOne(record: MachineRecord, atMs: number): Promise<void> {
    const known = this.#of(record.id);
    try {
      const asleep = this.#asleep(record, known, atMs);
      if (asleep !== undefined) return known.history.add(asleep);
      const measured = await this.#measure(this.#parts, record, atMs, await this.#links());
      known.history.add(this.#sampleOf(record, known, measured));
      known.before = { atMs, cpuMs: measured.cpuMs };
    } catch (err) {
      known.before = undefined;
      this.#parts.log.debug({ err, sandbox_id: record.id }, "no sample of a machine");
    }
  }

  /** For a dozing machine with a sample: the last sample, without measuring. */
  #asleep(record: MachineRecord, { history }: Known, atMs: number): Sample | undefined {
    if (this.#parts.machines.doze.activityOf(record.id) === undefined) return undefined;
    const { last } = history;
    // The sample may be of an earlier run.
    if (last === undefined || last.atMs < (record.runningSinceMs ?? 0)) return undefined;
    return { ...last, atMs, cpuShare: 0 };
  }

  #sampleOf(record: MachineRecord, { before }: Known, { cpuMs, ...measured }: Measured): Sample {
    const sinceMs = record.runningSinceMs ?? 0;
    // Without a sample of this run before: the average since the run began.
    const isSame = before !== undefined && before.atMs >= sinceMs && before.cpuMs <= cpuMs;
    const from = isSame ? before : { atMs: sinceMs, cpuMs: 0 };
    const passedMs = Math.max(1, measured.atMs - from.atMs);
    const share = (cpuMs - from.cpuMs) / passedMs / record.cpus;
    return { ...measured, cpuShare: Math.round(Math.min(1, Math.max(0, share)) * 10_000) / 10_000 };
  }

  #forget(ids: ReadonlySet<string>, atMs: number): void {
    const runsMax = Math.min(keptRunsMax, Math.max(runsMin, Math.floor(this.#runsTotal / this.#known.size)));
    for (const [id, { history }] of this.#known) {
      // Leave room for the next sample.
      history.keep(atMs - keptMs + sampleEveryMs, runsMax - 1);
      const isOver = history.isEmpty && this.#parts.machines.find(id)?.phase !== "running";
      if (!ids.has(id) || isOver) this.#known.delete(id);
    }
  }

  #of(id: string): Known {
    const known = this.#known.get(id) ?? { history: new SampleHistory() };
    this.#known.set(id, known);
    return known;
  }

  /** Traffic of all machines, read at once. */
  #links(): Promise<ReadonlyMap<string, LinkTraffic>> {
    const { clock, egress, log } = this.#parts;
    const nowMs = clock.monotonicMs();
    if (this.#traffic === undefined || this.#traffic.untilMs <= nowMs) {
      const links = egress.traffic().catch((err: unknown) => {
        log.debug({ err }, "the machines' traffic is not known");
        return new Map();
      });
      this.#traffic = { untilMs: nowMs + freshMs, links };
    }
    return this.#traffic.links;
  }
}
