import { describe, expect, it } from "vitest";
import { Metrics } from "./metrics.ts";

describe("Metrics", () => {
  it("prints counters, histograms and gauges in Prometheus' text format", async () => {
    const metrics = new Metrics();
    const errors = metrics.counter("errors_total", "Errors by code.");
    errors.add({ code: "not_found" });
    errors.add({ code: "not_found" }, 2);
    const latency = metrics.histogram("took_seconds", "How long it took.", [0.1, 1]);
    for (const seconds of [0.05, 0.1, 0.5, 7]) latency.observe({ operation: "create" }, seconds);
    metrics.gauge("depth", "How many.", async () => [{ labels: { kind: 'a"b\\c\nd' }, value: 3 }]);
    expect(await metrics.text()).toBe(`# HELP errors_total Errors by code.
# TYPE errors_total counter
errors_total{code="not_found"} 3
# HELP took_seconds How long it took.
# TYPE took_seconds histogram
took_seconds_bucket{operation="create",le="0.1"} 2
took_seconds_bucket{operation="create",le="1"} 3
took_seconds_bucket{operation="create",le="+Inf"} 4
took_seconds_sum{operation="create"} 7.65
took_seconds_count{operation="create"} 4
# HELP depth How many.
# TYPE depth gauge
depth{kind="a\\"b\\\\c\\nd"} 3
`);
  });

  it("bounds the series of a metric: what is beyond is gathered in one", async () => {
    const metrics = new Metrics();
    const counter = metrics.counter("many_total", "Many.");
    for (let index = 0; index < 10_000; index += 1) counter.add({ who: `caller-${index}` });
    const lines = (await metrics.text()).split("\n").filter((line) => line.startsWith("many_total{"));
    expect(lines).toHaveLength(501);
    expect(lines.at(-1)).toBe('many_total{who="other"} 9500');
  });

  it("leaves out a gauge that cannot be read, and refuses a name twice", async () => {
    const metrics = new Metrics();
    metrics.gauge("broken", "Broken.", () => Promise.reject(new Error("no")));
    metrics.counter("whole_total", "Whole.").add();
    expect(await metrics.text()).toContain("\nwhole_total 1\n");
    expect(() => metrics.counter("broken", "Again.")).toThrow(/exists already/);
  });
});
