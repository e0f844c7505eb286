import { expect, it } from "vitest";
import { SharedPlaces } from "./shared-places.ts";

const bounds = { ofSlot: 2, ofTeam: 4, all: 6, always: 1 };
const taken = (places: SharedPlaces, slots: readonly number[], team: string): number =>
  slots.filter((slot) => places.take(slot, team) !== undefined).length;

it("bounds a sandbox, and a team with many sandboxes", () => {
  const places = new SharedPlaces(bounds);
  expect(taken(places, [1, 1, 1, 1], "a")).toBe(2);
  expect(taken(places, [2, 3, 4, 5], "a")).toBe(2);
  expect(taken(places, [9], "b")).toBe(1);
});

it("keeps a place for a team that has none when others took all", () => {
  const places = new SharedPlaces(bounds);
  expect(taken(places, [1, 1, 2, 2], "a")).toBe(4);
  expect(taken(places, [3, 3, 4, 4], "b")).toBe(2);
  expect(taken(places, [5, 6], "c")).toBe(1);
  expect(taken(places, [7], "d")).toBe(1);
  expect(taken(places, [1, 2], "a")).toBe(0);
});

it("has a place again that was given back", () => {
  const places = new SharedPlaces({ ...bounds, all: 1, always: 0 });
  const leave = places.take(1, "a");
  expect(places.take(2, "b")).toBeUndefined();
  leave?.();
  expect(places.take(2, "b")).toBeDefined();
});
