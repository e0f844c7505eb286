import { expect, it } from "vitest";
import { RateLimit } from "./rate-limit.ts";

it("lets a burst through, then its rate, for each key by itself", () => {
  let nowMs = 0;
  const rate = new RateLimit({ perSecond: 2, burstSeconds: 5, monotonicMs: () => nowMs });
  for (let made = 0; made < 10; made += 1) expect(rate.take("a")).toBe(0);
  expect(rate.take("a")).toBe(1);
  expect(rate.take("b")).toBe(0);
  nowMs = 500;
  expect(rate.take("a")).toBe(0);
  expect(rate.take("a")).toBe(1);
});

it("has no limit at 0, and forgets keys that were quiet", () => {
  let nowMs = 0;
  const none = new RateLimit({ perSecond: 0, burstSeconds: 5, monotonicMs: () => nowMs });
  for (let made = 0; made < 100; made += 1) expect(none.take("a")).toBe(0);
  const rate = new RateLimit({ perSecond: 1, burstSeconds: 1, monotonicMs: () => nowMs });
  for (let key = 0; key < 1_024; key += 1) rate.take(`k${key}`);
  nowMs = 1_000;
  rate.take("one more");
  expect(rate.size).toBe(1);
});
