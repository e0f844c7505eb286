import { expect, test } from "vitest";
import { Identity } from "./identity.ts";

test("who waits for files that are never written waits no longer than the limit", async () => {
  const identity = new Identity();
  let late = 0;
  identity.writing(new Promise(() => undefined), () => (late += 1), 20);
  expect(identity.beingWritten).toBeInstanceOf(Promise);
  await identity.beingWritten;
  expect([late, identity.beingWritten]).toEqual([1, undefined]);
});

test("files that are written in time are not called late, and the latest ones count", async () => {
  const identity = new Identity();
  let late = 0;
  const first = Promise.withResolvers<void>();
  const second = Promise.withResolvers<void>();
  identity.writing(first.promise, () => (late += 1), 50);
  identity.writing(second.promise, () => (late += 1), 50);
  first.resolve();
  await new Promise(setImmediate);
  expect(identity.beingWritten).toBeInstanceOf(Promise);
  second.resolve();
  await identity.beingWritten;
  await new Promise((resolve) => setTimeout(resolve, 80));
  expect([late, identity.beingWritten]).toEqual([0, undefined]);
});
