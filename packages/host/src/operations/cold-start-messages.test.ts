import { expect, it } from "vitest";
import { withoutMemory, withServices } from "./cold-start-messages.ts";

const words = withoutMemory("the memory image is damaged");

it("says what is lost, why, and which services were started or could not be", () => {
  expect(withServices(words, { started: ["db", "web"], failed: ["mail"] })).toBe(
    "started from its disk, without its memory: the memory image is damaged; services started: db, web; " +
      "services that could not be started: mail",
  );
  expect(withServices(words, { started: [], failed: [] })).toBe(`${words}; services started: none`);
});

it("names ten of many", () => {
  const started = Array.from({ length: 12 }, (_, index) => `s${index}`);
  expect(withServices(words, { started, failed: [] })).toBe(
    `${words}; services started: s0, s1, s2, s3, s4, s5, s6, s7, s8, s9 and 2 more`,
  );
});

it("repeats nothing of an agent but names of services", () => {
  const started = ["ok", "<b>", "a".repeat(64), 7, { toString: () => "x" }];
  expect(withServices(words, { started, failed: "all" })).toBe(`${words}; services started: ok`);
});
