import { describe, expect, test } from "vitest";
import { hostsWith, Identity } from "./identity.ts";

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

describe("hosts with a name", () => {
  const hosts = "127.0.0.1\tlocalhost\n127.0.1.1\told\n::1\tlocalhost\n10.1.2.3\tdatabase # mine: \xe9\n";
  const named = (text: string, name: string): string | undefined =>
    hostsWith(Buffer.from(text, "latin1"), name)?.toString("latin1");

  test("takes the place of the one before, and the user's lines stay, whatever their bytes are", () => {
    expect(named(hosts, "box")).toBe(hosts.replace("old", "box"));
  });
  test("nothing changes where it is known already", () => {
    for (const known of ["127.0.1.1\tbox\n", "127.0.0.1 localhost box\n"])
      expect(named(known, "box")).toBe(undefined);
    expect(named("127.0.0.1 localhost # box\n", "box")).toBe("127.0.0.1 localhost # box\n127.0.1.1\tbox\n");
  });
  test("is added where there was none, and the file made where it is missing", () => {
    expect(named("# hosts\n127.0.0.1\tlocalhost\n", "box")).toBe(
      "# hosts\n127.0.0.1\tlocalhost\n127.0.1.1\tbox\n",
    );
    expect(named("", "box")).toBe(
      "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\tbox\n",
    );
    expect(hostsWith(undefined, "box")).toBe(undefined); // too large to be read
  });
});
