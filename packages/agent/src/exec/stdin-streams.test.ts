import { expect, test } from "vitest";
import { StdinStreams } from "./stdin-streams.ts";

const name = "abcdefghijklmnop";

test("pieces go to the command of the name, one at a time, until the end", async () => {
  const streams = new StdinStreams();
  const taken: string[] = [];
  let room = Promise.resolve();
  const opened = streams.open(name);
  await expect(streams.write(name, Buffer.from("early"), false)).rejects.toMatchObject({ code: "not_found" });
  opened.take({
    write: (data) => room.then(() => void taken.push(String(data))),
    end: () => taken.push("<end>"),
  });
  await streams.write(name, Buffer.from("one"), false);
  await streams.write(name, undefined, false);
  const held = Promise.withResolvers<void>();
  room = held.promise;
  const waiting = streams.write(name, Buffer.from("two"), false);
  await expect(streams.write(name, Buffer.from("three"), false)).rejects.toMatchObject({
    code: "failed_precondition",
    message: expect.stringContaining("wait for its answer"),
  });
  held.resolve();
  await waiting;
  await streams.write(name, Buffer.from("four"), true);
  expect(taken).toEqual(["one", "two", "four", "<end>"]);
  await expect(streams.write(name, Buffer.from("five"), false)).rejects.toMatchObject({
    message: expect.stringContaining("was ended before"),
  });
});

test("a name is one command's, and nobody's after its end", async () => {
  const streams = new StdinStreams();
  const opened = streams.open(name);
  expect(() => streams.open(name)).toThrow(expect.objectContaining({ code: "already_exists" }));
  opened.close();
  await expect(streams.write(name, undefined, true)).rejects.toMatchObject({ code: "not_found" });
  streams.open(name).close();
});
