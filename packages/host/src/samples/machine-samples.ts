// What every machine used in the last hour, a sample each 10 s while it runs, and what it uses now. A machine that dozes is not looked
// at: it uses what it used when it fell asleep, and no processor time.
//
// Owns the histories, in memory: they survive a suspension, not a restart of the service. Their memory is bounded however many machines
// there are: with very many, each has fewer samples.
import { type Clock, type Log, Looks } from "@cloche/base";
import type { MachineRecord } from "../machines/machine-record.ts";
import type { EgressControl } from "../network/egress-control.ts";
import type { LinkTraffic } from "../network/traffic.ts";
import { atRest, measure, type Measured, type MeasureParts } from "./measure.ts";
import { SAMPLE_EVERY_MS, type Sample, SampleHistory } from "./sample-history.ts";

const KEPT_MS = 3_600_000;
const RUNS_MAX = KEPT_MS / SAMPLE_EVERY_MS;
/** Of all machines together: at most some 64 MiB. Each keeps some minutes, whatever the others have. */
const RUNS_TOTAL = 500_000;
const RUNS_MIN = 30;
/** Who asks more often than that is told the same again. */
const FRESH_MS = 1_000;

interface Known {
  history: SampleHistory;
  /** What the next share is measured against. */
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
  readonly #looks: Looks;
  readonly #stop = new AbortController();
  #running: Promise<void> | undefined;
  #traffic: { untilMs: number; links: Promise<ReadonlyMap<string, LinkTraffic>> } | undefined;

  /** `runsTotal`: of all machines together. */
  constructor(parts: MachineSamplesParts, measureOne: typeof measure = measure, runsTotal = RUNS_TOTAL) {
    this.#parts = parts;
    this.#measure = measureOne;
    this.#runsTotal = runsTotal;
    this.#looks = new Looks(parts.clock);
  }

  start(): void {
    this.#running = this.#run();
  }

  async stop(): Promise<void> {
    this.#stop.abort(new Error("the host is stopping"));
    await this.#running;
  }

  /** Numbers kept in memory, of all machines. */
  get size(): number {
    return [...this.#known.values()].reduce((sum, { history }) => sum + history.size, 0);
  }

  /** Oldest first. */
  history(id: string): Sample[] {
    const { history } = this.#known.get(id) ?? {};
    history?.keep(this.#parts.clock.nowMs() - KEPT_MS, RUNS_MAX);
    return history?.all() ?? [];
  }

  async now(record: MachineRecord): Promise<Sample> {
    const atMs = this.#parts.clock.nowMs();
    if (record.phase !== "running") return await atRest(this.#parts, record, atMs);
    const known = this.#of(record.id);
    if (known.now !== undefined && atMs - known.now.atMs < FRESH_MS) return known.now;
    const asleep = this.#asleep(record, known, atMs);
    if (asleep !== undefined) return asleep;
    const measured = await this.#measure(this.#parts, record, atMs, await this.#links());
    known.now = this.#sampleOf(record, known, measured);
    return known.now;
  }

  /** Takes a sample of every machine that runs. `atMs`: a multiple of SAMPLE_EVERY_MS. */
  async look(atMs: number): Promise<void> {
    const all = this.#parts.machines.all();
    this.#forget(new Set(all.map(({ id }) => id)), atMs);
    const running = all.filter(({ phase }) => phase === "running");
    await this.#looks.each(
      running,
      (record) => this.#lookAt(record, atMs),
      () => this.#stop.signal.aborted,
    );
  }

  async #run(): Promise<void> {
    const { clock } = this.#parts;
    const { signal } = this.#stop;
    while (!signal.aborted) {
      const nextMs = (Math.floor(clock.nowMs() / SAMPLE_EVERY_MS) + 1) * SAMPLE_EVERY_MS;
      await clock.sleep(nextMs - clock.nowMs(), signal).catch(() => undefined);
      if (!signal.aborted) await this.look(nextMs);
    }
  }

  async #lookAt(record: MachineRecord, atMs: number): Promise<void> {
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

  /** Of one that dozes and of which there is a sample: the same, at no cost. */
  #asleep(record: MachineRecord, { history }: Known, atMs: number): Sample | undefined {
    if (this.#parts.machines.doze.activityOf(record.id) === undefined) return undefined;
    const { last } = history;
    // It may have run anew since.
    if (last === undefined || last.atMs < (record.runningSinceMs ?? 0)) return undefined;
    return { ...last, atMs, cpuShare: 0 };
  }

  #sampleOf(record: MachineRecord, { before }: Known, { cpuMs, ...measured }: Measured): Sample {
    const sinceMs = record.runningSinceMs ?? 0;
    // Where there is none before it, or the machine has begun to run since: on average since then.
    const isSame = before !== undefined && before.atMs >= sinceMs && before.cpuMs <= cpuMs;
    const from = isSame ? before : { atMs: sinceMs, cpuMs: 0 };
    const passedMs = Math.max(1, measured.atMs - from.atMs);
    const share = (cpuMs - from.cpuMs) / passedMs / record.cpus;
    return { ...measured, cpuShare: Math.round(Math.min(1, Math.max(0, share)) * 10_000) / 10_000 };
  }

  #forget(ids: ReadonlySet<string>, atMs: number): void {
    const runsMax = Math.min(RUNS_MAX, Math.max(RUNS_MIN, Math.floor(this.#runsTotal / this.#known.size)));
    for (const [id, { history }] of this.#known) {
      // Room for the sample that comes now.
      history.keep(atMs - KEPT_MS + SAMPLE_EVERY_MS, runsMax - 1);
      const isOver = history.isEmpty && this.#parts.machines.find(id)?.phase !== "running";
      if (!ids.has(id) || isOver) this.#known.delete(id);
    }
  }

  #of(id: string): Known {
    const known = this.#known.get(id) ?? { history: new SampleHistory() };
    this.#known.set(id, known);
    return known;
  }

  /** Of all machines at once. */
  #links(): Promise<ReadonlyMap<string, LinkTraffic>> {
    const { clock, egress, log } = this.#parts;
    const nowMs = clock.monotonicMs();
    if (this.#traffic === undefined || this.#traffic.untilMs <= nowMs) {
      const links = egress.traffic().catch((err: unknown) => {
        log.debug({ err }, "the machines' traffic is not known");
        return new Map();
      });
      this.#traffic = { untilMs: nowMs + FRESH_MS, links };
    }
    return this.#traffic.links;
  }
}
