// Frames that no agent would send, to the guest program compiled with the address and undefined-behaviour sanitizers: to its
// pid 1, which runs programs, and to its file server. It may end the connection; it may not touch memory that is not its own.
import fc from "fast-check";
import { afterEach, beforeEach, expect, test } from "vitest";
import { eventually } from "../fixtures/client.ts";
import { FrameWriter, frameTypes } from "../../packages/agent/src/spawner/wire.ts";
import { patience, plan } from "./seed.ts";
import { SanitizedGuest } from "./sanitized-guest.ts";

let guest: SanitizedGuest;
beforeEach(async () => {
  guest = await SanitizedGuest.start();
  hello();
});
afterEach(() => guest.close());

function hello(): void {
  for (const stream of [guest.init, guest.files])
    stream.write(new FrameWriter().u32(1).finish(frameTypes.hello, 0, 0));
}

const number = fc.oneof(fc.constantFrom(0, 1, 2, 255, 4_096, 65_536, 0x7fffffff, 0xffffffff), fc.nat(1_000));
const text = fc.oneof(
  fc.constantFrom(
    "/",
    "/tmp",
    "/tmp/a",
    "/tmp/a/b",
    "/none",
    "relative",
    "",
    "root",
    "nobody",
    "/bin/true",
    "true",
    "x=y",
    "/proc/self/mem",
    "/dev/full",
  ),
  fc.string({ maxLength: 30 }).map((name) => `/tmp/${name}`),
  fc.string({ maxLength: 20 }),
  fc.constantFrom("/tmp/".padEnd(300, "n"), `/tmp${"/d".repeat(3_000)}`),
);
/** A field: mostly what the protocol has there, now and then something else, or a size that is not the true one. */
const field = fc.oneof(
  { weight: 4, arbitrary: text.map((value) => new FrameWriter().string(value).finish(0, 0, 0).subarray(12)) },
  { weight: 4, arbitrary: number.map((value) => new FrameWriter().u32(value).finish(0, 0, 0).subarray(12)) },
  { weight: 1, arbitrary: fc.uint8Array({ maxLength: 40 }).map((bytes) => Buffer.from(bytes)) },
  {
    weight: 1,
    arbitrary: fc.tuple(number, text).map(([size, value]) => {
      const bytes = new FrameWriter().string(value).finish(0, 0, 0).subarray(12);
      bytes.writeUInt32LE(size, 0);
      return bytes;
    }),
  },
);
const flags = fc.oneof(fc.constant(0), fc.nat(31), fc.nat(255));
const id = fc.nat(6);
const frameOf = (types: readonly number[]) =>
  fc
    .tuple(
      fc.oneof({ weight: 9, arbitrary: fc.constantFrom(...types) }, { weight: 1, arbitrary: fc.nat(255) }),
      flags,
      id,
      fc.array(field, { maxLength: 6 }),
    )
    .map(([type, flag, one, fields]) => new FrameWriter().raw(Buffer.concat(fields)).finish(type, flag, one));

const { spawn, stdin, stdinEnd, credit, signal, kill, resize, ...rest } = frameTypes;
const ofFiles = [
  rest.lstat,
  rest.open,
  rest.read,
  rest.close,
  rest.write,
  rest.remove,
  rest.list,
  rest.mkdir,
  rest.move,
  rest.as,
  rest.upload,
  rest.uploadData,
  rest.uploadEnd,
  rest.watchMore,
  rest.unwatch,
];
/** A spawn that is nearly right: those reach furthest. */
const spawned = fc
  .tuple(
    number,
    number,
    number,
    text,
    text,
    fc.array(text, { maxLength: 4 }),
    fc.array(text, { maxLength: 3 }),
    flags,
    id,
  )
  .map(([cols, rows, window, user, cwd, argv, env, flag, one]) =>
    new FrameWriter()
      .u16(cols & 0xffff)
      .u16(rows & 0xffff)
      .u32(window)
      .string(user)
      .string(cwd)
      .strings(argv)
      .strings(env)
      .finish(spawn, flag, one),
  );
/** Writes, watches and changes that are nearly right, as root and as others; small ids and handles, so that they meet. */
const nearlyRight = fc
  .tuple(
    fc.constantFrom(
      (path: string, other: string, one: number) =>
        new FrameWriter()
          .string(path)
          .u32(0o644)
          .string(other)
          .string("")
          .finish(rest.upload, one & 1, one),
      (_path: string, other: string, one: number) =>
        new FrameWriter()
          .u32(one)
          .u64(one * 7)
          .u32(other.length)
          .raw(Buffer.from(other, "latin1"))
          .finish(rest.uploadData, 0, one),
      (_path: string, _other: string, one: number) =>
        new FrameWriter().u32(one).finish(rest.uploadEnd, one & 1, one),
      (path: string, other: string, one: number) =>
        new FrameWriter()
          .string(path)
          .string(other)
          .finish(rest.copy, one & 1, one),
      (path: string, _other: string, one: number) =>
        new FrameWriter()
          .string(path)
          .u32(one * 73)
          .finish(rest.chmod, one & 1, one),
      (path: string, other: string, one: number) =>
        new FrameWriter()
          .string(path)
          .string(other)
          .string("0")
          .finish(rest.chown, one & 1, one),
      (path: string, _other: string, one: number) =>
        new FrameWriter().string(path).finish(rest.watch, one & 1, one),
      (_path: string, _other: string, one: number) => new FrameWriter().finish(rest.watchMore, 0, one),
      (_path: string, _other: string, one: number) => new FrameWriter().finish(rest.unwatch, 0, one),
    ),
    // Not the whole tree: a copy of it would fill the disk, a change of its modes end the program.
    text.filter((path) => path.startsWith("/tmp")),
    text.filter((path) => path.startsWith("/tmp") || path === "root" || path === "nobody"),
    id,
    fc.constantFrom(undefined, undefined, "nobody", "root", "1", "nobody-here"),
  )
  .map(([make, path, other, one, user]) => {
    const frame = make(path, other, one);
    return user === undefined ? frame : new FrameWriter().string(user).raw(frame).finish(rest.as, 0, 0);
  });
const toFiles = fc.oneof(frameOf(ofFiles), nearlyRight);
const toInit = fc.oneof(
  { weight: 2, arbitrary: spawned },
  { weight: 3, arbitrary: frameOf([spawn, stdin, stdinEnd, credit, signal, kill, resize]) },
);
/** Lengths that no frame has, and ends in the middle. */
const broken = fc.tuple(frameOf(ofFiles), number, fc.nat(20)).map(([frame, length, cut]) => {
  const bytes = Buffer.from(frame);
  bytes.writeUInt32LE(length, 0);
  return bytes.subarray(0, Math.max(4, bytes.length - cut));
});

/** Whether both halves still answer: a file request, and a program that is run. */
async function answers(): Promise<boolean> {
  guest.frames.length = 0;
  guest.files.write(new FrameWriter().string("/").finish(frameTypes.lstat, 0, 77));
  guest.init.write(new FrameWriter().finish(frameTypes.kill, 0, 78));
  const program = new FrameWriter()
    .u16(0)
    .u16(0)
    .u32(65_536)
    .string("root")
    .string("/")
    .strings(["/bin/true"])
    .strings([]);
  guest.init.write(program.finish(spawn, 0, 79));
  const wanted = [77, 79];
  const has = () => wanted.every((one) => guest.frames.some((frame) => frame.id === one));
  return await eventually(() => has() || guest.hasEnded, Boolean, 60_000).then(has);
}

const rounds = 12;
test.each([
  ["pid 1", () => guest.init, toInit],
  ["the file server", () => guest.files, toFiles],
])("%s bears any frames", { timeout: patience(300_000) }, async (_, stream, frame) => {
  await fc.assert(
    fc.asyncProperty(fc.array(frame, { minLength: 1, maxLength: 40 }), async (frames) => {
      for (const one of frames) stream().write(one);
      // What was spawned is ended, so that no round is limited by the one before.
      for (let one = 0; one <= 6; one += 1) guest.init.write(new FrameWriter().finish(kill, 0, one));
      const well = await answers();
      expect(guest.problems()).toBe("");
      // Stdin beyond its window, and a read of nothing that it may end on, end the connection by the protocol.
      if (!well) {
        expect(guest.hasEnded, "it answers, or has ended").toBe(true);
        await guest.close();
        guest = await SanitizedGuest.start();
        hello();
      }
    }),
    plan(rounds * 4),
  );
});

test("broken framing ends it, or is waited out", { timeout: patience(300_000) }, async () => {
  await fc.assert(
    fc.asyncProperty(fc.boolean(), broken, async (init, bytes) => {
      const stream = init ? guest.init : guest.files;
      stream.write(bytes);
      stream.end();
      await guest.ended;
      expect(guest.problems()).toBe("");
      await guest.close();
      guest = await SanitizedGuest.start();
      hello();
    }),
    plan(rounds),
  );
});
