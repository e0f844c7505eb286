/**
 * Samples of one machine, oldest first, in little memory: a run of equal samples, as of a dozing machine, is stored once with its
 * count.
 */

/** Resources that a machine used at one moment. Sizes in bytes. */
export interface Sample {
  atMs: number;
  /** Share of its CPUs used since the sample before: 0 to 1. */
  cpuShare: number;
  memoryBytes: number;
  diskBytes: number;
  /** Since the machine last began to run. */
  receivedBytes: number;
  sentBytes: number;
  processes: number;
}

/** Time between samples; the time of each sample is a multiple of it. */
export const sampleEveryMs = 10_000;

const valueNames = [
  "cpuShare",
  "memoryBytes",
  "diskBytes",
  "receivedBytes",
  "sentBytes",
  "processes",
] as const;
/** Fields of a run: time of its first sample, count, values. */
const fields = 2 + valueNames.length;
const firstRuns = 4;

export class SampleHistory {
  #runs = new Float64Array(firstRuns * fields);
  #begin = 0;
  #end = 0;

  /** How many numbers are kept in memory. */
  get size(): number {
    return this.#runs.length;
  }

  get isEmpty(): boolean {
    return this.#begin === this.#end;
  }

  /** Appends a sample. */
  add(sample: Sample): void {
    const last = this.#end - fields;
    if (last >= this.#begin && this.#goesOn(last, sample)) {
      this.#runs[last + 1] = this.#at(last + 1) + 1;
      return;
    }
    if (this.#end === this.#runs.length) this.#makeRoom();
    this.#runs.set([sample.atMs, 1, ...valueNames.map((name) => sample[name])], this.#end);
    this.#end += fields;
  }

  /** Drops samples before `sinceMs`, and the oldest runs beyond `runsMax`. */
  keep(sinceMs: number, runsMax: number): void {
    while (this.#begin < this.#end) {
      const [firstMs, count] = [this.#at(this.#begin), this.#at(this.#begin + 1)];
      const old = Math.min(count, Math.max(0, Math.ceil((sinceMs - firstMs) / sampleEveryMs)));
      const isTooMany = this.#end - this.#begin > runsMax * fields;
      if (old < count && !isTooMany) {
        this.#runs[this.#begin] = firstMs + old * sampleEveryMs;
        this.#runs[this.#begin + 1] = count - old;
        return;
      }
      this.#begin += fields;
    }
  }

  all(): Sample[] {
    const samples: Sample[] = [];
    for (let run = this.#begin; run < this.#end; run += fields) {
      const first = this.#sample(run);
      for (let index = 0; index < this.#at(run + 1); index += 1)
        samples.push({ ...first, atMs: first.atMs + index * sampleEveryMs });
    }
    return samples;
  }

  get last(): Sample | undefined {
    if (this.isEmpty) return undefined;
    const run = this.#end - fields;
    return { ...this.#sample(run), atMs: this.#at(run) + (this.#at(run + 1) - 1) * sampleEveryMs };
  }

  #goesOn(run: number, sample: Sample): boolean {
    const isNext = sample.atMs === this.#at(run) + this.#at(run + 1) * sampleEveryMs;
    return isNext && valueNames.every((name, index) => sample[name] === this.#at(run + 2 + index));
  }

  #sample(run: number): Sample {
    const values = valueNames.map((name, index) => [name, this.#at(run + 2 + index)]);
    return { ...(Object.fromEntries(values) as Omit<Sample, "atMs">), atMs: this.#at(run) };
  }

  #at(index: number): number {
    return this.#runs[index] ?? 0;
  }

  /** Reuses the room of dropped samples, or grows by half. */
  #makeRoom(): void {
    const kept = this.#runs.subarray(this.#begin, this.#end);
    const hasRoom = kept.length * 4 <= this.#runs.length * 3;
    const next = hasRoom
      ? this.#runs
      : new Float64Array(Math.ceil((this.#runs.length / fields) * 1.5) * fields);
    next.set(kept);
    this.#runs = next;
    [this.#begin, this.#end] = [0, kept.length];
  }
}
