import { setTimeout as sleep } from "node:timers/promises";
import { expect, it } from "vitest";
import {
  apart,
  logIds,
  requestIds,
  step,
  traced,
  type TraceStep,
  withRequestIds,
} from "./request-context.ts";
import { runSaga } from "./saga.ts";

const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

it("carries ids through promises, apart from one another", async () => {
  const seen = await Promise.all(
    ["a", "b"].map((requestId) =>
      withRequestIds({ requestId, traceparent: "" }, async () => {
        await sleep(1);
        return requestIds().requestId;
      }),
    ),
  );
  expect(seen).toEqual(["a", "b"]);
  expect(requestIds()).toMatchObject({ requestId: "", traceparent: "" });
  expect(logIds({ requestId: "a", traceparent })).toEqual({
    request_id: "a",
    trace_id: "0af7651916cd43dd8448eb211c80319c",
  });
  expect(logIds()).toEqual({});
});

it("tells of nested steps, of a saga's too, in the order in which they began", async () => {
  let told: readonly TraceStep[] = [];
  const journal = { save: async () => undefined, remove: async () => undefined };
  const saga = { id: "1", kind: "create", begun: [], direction: "forward" as const, context: {} };
  const steps = [
    { name: "disk", do: () => step("clone", async () => undefined) },
    { name: "assign", do: () => Promise.reject(new Error("no")) },
  ];
  const tracing = traced(
    () => withSteps(() => runSaga(saga, steps, journal)),
    (all) => (told = all),
  );
  await expect(tracing).rejects.toThrow("no");
  expect(told.map(({ step: name, depth, failed }) => [name, depth, failed])).toEqual([
    ["queue", 0, undefined],
    ["disk", 0, undefined],
    ["clone", 1, undefined],
    ["assign", 0, true],
  ]);
  for (const { at_ms, ms } of told) expect(at_ms >= 0 && ms >= 0).toBe(true);
});

it("leaves out what is apart, what comes late, and what is too much", async () => {
  let told: readonly TraceStep[] = [];
  let late: Promise<void> | undefined;
  await traced(
    async () => {
      await apart(() => step("refill", async () => undefined));
      late = sleep(5).then(() => step("late", async () => undefined));
      for (let index = 0; index < 500; index += 1) await step("one", async () => undefined);
    },
    (all) => (told = all),
  );
  await late;
  expect(told).toHaveLength(200);
  expect(new Set(told.map((one) => one.step))).toEqual(new Set(["one"]));
});

async function withSteps<T>(body: () => Promise<T>): Promise<T> {
  await step("queue", async () => undefined);
  return await body();
}
