import { describe, expect, it } from "vitest";
import { placesOf } from "./bounds.ts";
import { addressOf, ConnectionPlaces } from "./connection-places.ts";

describe("places", () => {
  const closed: string[] = [];
  const filled = (names: string): ConnectionPlaces => {
    closed.length = 0;
    const places = new ConnectionPlaces({ connections: names.length, connectionsPerAddress: names.length });
    for (const name of names) take(places, name);
    return places;
  };
  const take = (places: ConnectionPlaces, name: string): boolean =>
    places.take(name, () => closed.push(name));
  const whole = (): boolean => true;

  it("are given up by who has asked nothing for longest", () => {
    const places = filled("abc");
    places.ask("a", whole)();
    for (const name of "defg") expect(take(places, name)).toBe(true);
    expect(closed).toEqual(["b", "c", "a", "d"]);
    expect(places.size).toBe(3);
  });

  it("are kept by who asks something, and by who left for another protocol", () => {
    const places = filled("abc");
    const answered = places.ask("a", whole);
    places.ask("b", whole);
    const second = places.ask("a", whole);
    answered();
    answered();
    expect(take(places, "d")).toBe(true);
    places.ask("d", whole);
    expect(take(places, "e")).toBe(false);
    second();
    expect(take(places, "e")).toBe(true);
    expect(closed).toEqual(["c", "a"]);
  });

  it("are not kept by a request that is not whole, which becomes so unnoticed", () => {
    const places = filled("ab");
    let isWhole = false;
    const answered = places.ask("a", () => isWhole);
    places.ask("b", () => false);
    isWhole = true;
    expect(take(places, "c")).toBe(true);
    answered();
    expect(take(places, "d")).toBe(true);
    expect(closed).toEqual(["b", "c"]);
    expect(take(places, "e")).toBe(true);
    expect(closed).toEqual(["b", "c", "a"]);
  });

  it("are free when their connection is closed, however late its answer", () => {
    const places = filled("a");
    const answered = places.ask("a", whole);
    places.leave("a");
    expect(take(places, "b")).toBe(true);
    answered();
    expect(places.size).toBe(1);
    places.leave("b");
    expect(places.size).toBe(0);
  });

  it("are for several addresses: one with all its places gives up its own, or finds none", () => {
    closed.length = 0;
    const places = new ConnectionPlaces({ connections: 4, connectionsPerAddress: 2 });
    const from = (address: string, name: string): boolean =>
      places.take(name, () => closed.push(name), address);
    for (const name of ["a", "b", "c"]) expect(from("stranger", name)).toBe(true);
    expect(closed).toEqual(["a"]);
    expect(from("neighbour", "n")).toBe(true);
    places.ask("b", whole);
    const answered = places.ask("c", whole);
    expect(from("stranger", "d")).toBe(false);
    expect(from("neighbour", "m")).toBe(true);
    expect(closed).toEqual(["a"]);
    answered();
    expect(from("stranger", "d")).toBe(true);
    expect(closed).toEqual(["a", "c"]);
    for (const name of ["b", "d"]) places.leave(name);
    for (const name of ["e", "f"]) expect(from("stranger", name)).toBe(true);
    expect(places.size).toBe(4);
  });
});

it("counts an IPv6 network as one address, and IPv4 however it is written", () => {
  const of = (remoteAddress: string): string => addressOf({ remoteAddress });
  expect(of("::ffff:192.0.2.7")).toBe("192.0.2.7");
  expect(of("2001:db8:1:2:3:4:5:6")).toBe(of("2001:db8:1:2::9"));
  expect(of("2001:db8::1")).toBe("2001:db8:0:0");
  expect(of("2001:db8:1:3::9")).not.toBe(of("2001:db8:1:2::9"));
});

it.each([1_048_576, 65_536, 20_000, 1_024])(
  "leaves half of %d descriptors for connections to sandboxes, over all listeners of a process",
  (descriptors) => {
    const most = (names: readonly (keyof typeof shares)[]): number =>
      names.reduce((sum, name) => sum + placesOf(name, descriptors).connections, 0);
    const shares = { gateway: 1, edge: 1, e2b: 1, mcp: 1, cluster: 1, operator: 1 };
    expect(most(["gateway", "edge", "e2b", "mcp", "operator"])).toBeLessThanOrEqual(descriptors / 2);
    expect(most(["gateway", "e2b", "mcp", "cluster", "operator"])).toBeLessThanOrEqual(descriptors / 2);
    const { connections, connectionsPerAddress } = placesOf("gateway", descriptors);
    expect(connectionsPerAddress).toBeLessThanOrEqual(Math.ceil(connections / 2));
  },
);
