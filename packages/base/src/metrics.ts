/**
 * Counters, histograms and gauges, printed in Prometheus' text format. Label values should come from closed sets. In
 * case they do not, series beyond `seriesPerMetric` are counted in one series whose labels are all `other`, so that
 * memory stays bounded.
 */
export type Labels = Readonly<Record<string, string>>;

export interface Counter {
  add(labels?: Labels, by?: number): void;
}
export interface Histogram {
  observe(labels: Labels, seconds: number): void;
}
export interface Sample {
  labels?: Labels;
  value: number;
}
export type ReadGauge = () => readonly Sample[] | Promise<readonly Sample[]>;

interface Metric {
  name: string;
  print(): Promise<string>;
}

const seriesPerMetric = 500;
/** Upper bounds in seconds: from a round trip on an open connection to very long operations. */
export const latencyBuckets: readonly number[] = [
  0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60,
];

export class Metrics {
  readonly #metrics = new Map<string, Metric>();

  /** `name` must end in `_total`. */
  counter(name: string, help: string): Counter {
    const series = new SeriesMap(() => ({ value: 0 }));
    this.#add(name, help, "counter", () =>
      [...series].map(([labels, { value }]) => line(name, labels, value)),
    );
    return {
      add: (labels = {}, by = 1) => {
        series.of(labels).value += by;
      },
    };
  }

  /** `name` must end in `_seconds`. */
  histogram(name: string, help: string, buckets: readonly number[] = latencyBuckets): Histogram {
    const series = new SeriesMap(() => ({ counts: buckets.map(() => 0), count: 0, sum: 0 }));
    this.#add(name, help, "histogram", () =>
      [...series].flatMap(([labels, one]) => {
        let below = 0;
        const lines = buckets.map((bound, index) => {
          below += one.counts[index] as number;
          return line(`${name}_bucket`, { ...labels, le: String(bound) }, below);
        });
        lines.push(line(`${name}_bucket`, { ...labels, le: "+Inf" }, one.count));
        return [...lines, line(`${name}_sum`, labels, one.sum), line(`${name}_count`, labels, one.count)];
      }),
    );
    return {
      observe: (labels, seconds) => {
        const one = series.of(labels);
        const index = buckets.findIndex((bound) => seconds <= bound);
        if (index !== -1) (one.counts[index] as number) += 1;
        one.count += 1;
        one.sum += seconds;
      },
    };
  }

  /** `read` is called for each scrape. If it fails, the answer has no samples of this metric. */
  gauge(name: string, help: string, read: ReadGauge, type: "gauge" | "counter" = "gauge"): void {
    this.#add(name, help, type, async () =>
      (await read()).slice(0, seriesPerMetric).map(({ labels, value }) => line(name, labels ?? {}, value)),
    );
  }

  /** All metrics, as text/plain; version=0.0.4. */
  async text(): Promise<string> {
    const printed = await Promise.all([...this.#metrics.values()].map((metric) => metric.print()));
    return printed.join("");
  }

  #add(
    name: string,
    help: string,
    type: "counter" | "gauge" | "histogram",
    lines: () => readonly string[] | Promise<readonly string[]>,
  ): void {
    if (this.#metrics.has(name)) throw new Error(`metric ${name} exists already`);
    const head = `# HELP ${name} ${help}\n# TYPE ${name} ${type}\n`;
    const print = async (): Promise<string> => {
      try {
        const body = await lines();
        return body.length === 0 ? head : `${head}${body.join("\n")}\n`;
      } catch {
        return head;
      }
    };
    this.#metrics.set(name, { name, print });
  }
}

class SeriesMap<T> {
  readonly #series = new Map<string, { labels: Labels; value: T }>();
  readonly #make: () => T;

  constructor(make: () => T) {
    this.#make = make;
  }

  of(labels: Labels): T {
    const key = Object.values(labels).join("\0");
    const known = this.#series.get(key);
    if (known !== undefined) return known.value;
    if (this.#series.size >= seriesPerMetric) return this.#overflow(labels);
    const made = { labels, value: this.#make() };
    this.#series.set(key, made);
    return made.value;
  }

  #overflow(labels: Labels): T {
    const gathered = this.#series.get("overflow");
    if (gathered !== undefined) return gathered.value;
    const other = Object.fromEntries(Object.keys(labels).map((name) => [name, "other"]));
    const made = { labels: other, value: this.#make() };
    this.#series.set("overflow", made);
    return made.value;
  }

  *[Symbol.iterator](): Iterator<[Labels, T]> {
    for (const { labels, value } of this.#series.values()) yield [labels, value];
  }
}

function line(name: string, labels: Labels, value: number): string {
  const pairs = Object.entries(labels).map(([label, text]) => `${label}="${escaped(text)}"`);
  return `${name}${pairs.length === 0 ? "" : `{${pairs.join(",")}}`} ${value}`;
}

const escaped = (text: string): string =>
  text.replaceAll("\\", "\\\\").replaceAll('"', '\\"').replaceAll("\n", "\\n");
