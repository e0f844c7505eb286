import { expect, it } from "vitest";
import { readSignal, signalName } from "./signals.ts";

it.each([
  ["SIGINT", 2],
  ["int", 2],
  ["SIGKILL", 9],
  ["9", 9],
  [15, 15],
  [64, 64],
  ["SIGRTMIN+3", 37],
  ["RTMIN", 34],
  ["SIGRTMAX-1", 63],
])("reads %s", (signal, number) => {
  expect(readSignal(signal)).toBe(number);
});

it.each([
  undefined,
  null,
  "",
  "SIG",
  "SIGNOT",
  "SIGRTMIN+31",
  "SIGRTMAX+1",
  "SIGRTMIN-1",
  "0",
  "65",
  0,
  65,
  1.5,
  -1,
  true,
  ["SIGINT"],
])("refuses %j", (signal) => {
  expect(() => readSignal(signal)).toThrow(expect.objectContaining({ code: "invalid_argument" }));
});

it.each([
  [2, "SIGINT"],
  [6, "SIGABRT"],
  [9, "SIGKILL"],
  [29, "SIGIO"],
  [34, "SIGRTMIN+0"],
  [32, "SIG32"],
])("names %i", (number, name) => {
  expect(signalName(number)).toBe(name);
});
