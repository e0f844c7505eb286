import { describe, expect, it } from "vitest";
import { sampleEveryMs, type Sample, SampleHistory } from "./sample-history.ts";

const sample = (index: number, changes: Partial<Sample> = {}): Sample => ({
  atMs: index * sampleEveryMs,
  cpuShare: 0.25,
  memoryBytes: 2 ** 40 + 1,
  diskBytes: 4_096,
  receivedBytes: 7,
  sentBytes: 8,
  processes: 3,
  ...changes,
});
const times = (history: SampleHistory): number[] => history.all().map(({ atMs }) => atMs / sampleEveryMs);

describe("SampleHistory", () => {
  it("gives back what was put in, to the last byte", () => {
    const history = new SampleHistory();
    const put = [sample(1), sample(2, { processes: 4 }), sample(3, { processes: 4 }), sample(9)];
    for (const one of put) history.add(one);
    expect(history.all()).toEqual(put);
    expect(history.last).toEqual(put.at(-1));
  });

  it("keeps what does not change once: a machine that dozes costs nothing", () => {
    const dozing = new SampleHistory();
    const busy = new SampleHistory();
    for (let index = 0; index < 360; index += 1) {
      dozing.add(sample(index));
      busy.add(sample(index, { sentBytes: index }));
    }
    expect(dozing.all()).toHaveLength(360);
    expect(dozing.size).toBeLessThan(50);
    expect(busy.size).toBeLessThan(360 * 2 * 8);
    // After a pause it is another run, though the values are the same.
    dozing.add(sample(400));
    expect(times(dozing).slice(-2)).toEqual([359, 400]);
  });

  it("forgets what is too old, within a run too", () => {
    const history = new SampleHistory();
    for (let index = 0; index < 10; index += 1) history.add(sample(index));
    for (let index = 10; index < 20; index += 1) history.add(sample(index, { sentBytes: index }));
    history.keep(4 * sampleEveryMs, 1_000);
    expect(times(history)).toEqual([4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19]);
    history.keep(4.5 * sampleEveryMs, 1_000);
    expect(times(history)[0]).toBe(5);
    history.keep(0, 3);
    expect(times(history)).toEqual([17, 18, 19]);
    history.keep(20 * sampleEveryMs, 3);
    expect([history.isEmpty, history.all(), history.last]).toEqual([true, [], undefined]);
    history.add(sample(30));
    expect(times(history)).toEqual([30]);
  });

  it("stays as small as an hour is, however long it goes on", () => {
    const history = new SampleHistory();
    for (let index = 0; index < 10_000; index += 1) {
      history.keep((index - 360) * sampleEveryMs, 360);
      history.add(sample(index, { sentBytes: index }));
    }
    expect(times(history)).toHaveLength(361);
    expect(history.size).toBeLessThanOrEqual(1_024 * 8);
  });
});
