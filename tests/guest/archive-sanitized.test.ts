// What reads an archive, compiled with the sanitizers, on archives that are made to break it: whatever a block says, it ends by
// itself, says why, and touches nothing outside its directory.
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { sanitizedBinary } from "../fuzz/sanitized-guest.ts";
import { plan } from "../fuzz/seed.ts";
import { isRoot } from "./guest-fixture.ts";

let binary: string;
let folder: string;
beforeAll(async () => {
  if (!isRoot) return;
  binary = await sanitizedBinary();
  folder = mkdtempSync(join(tmpdir(), "cloche-archive-"));
  mkdirSync(join(folder, "outside"));
  writeFileSync(join(folder, "outside", "secret"), "secret");
});
afterAll(() => folder && rmSync(folder, { recursive: true, force: true }));

interface Block {
  name?: string;
  type?: string;
  link?: string;
  /** Fields as they stand in the header. */
  size?: string | Buffer;
  uid?: string | Buffer;
  mtime?: string | Buffer;
  body?: string | Buffer;
}

/** A header with a right checksum, whatever else is in it, and its body. */
function block({
  name = "f",
  type = "0",
  link = "",
  size,
  uid = "0000000",
  mtime = "0",
  body = "",
}: Block): Buffer {
  const header = Buffer.alloc(512);
  const data = Buffer.from(body);
  const put = (text: string | Buffer, at: number, room: number): void =>
    void Buffer.from(text).copy(header, at, 0, room);
  put(name, 0, 100);
  put("0000644", 100, 8);
  put(uid, 108, 8);
  put("0000000", 116, 8);
  put(size ?? data.length.toString(8).padStart(11, "0"), 124, 12);
  put(mtime, 136, 12);
  put(type, 156, 1);
  put(link, 157, 100);
  put("ustar\x0000", 257, 8);
  header.fill(" ", 148, 156);
  put(
    `${header
      .reduce((sum, byte) => sum + byte, 0)
      .toString(8)
      .padStart(6, "0")}\0 `,
    148,
    8,
  );
  return Buffer.concat([header, data, Buffer.alloc((512 - (data.length % 512)) % 512)]);
}

const record = (text: string): string => {
  let size = text.length + 2;
  while (`${size} ${text}\n`.length !== size) size = `${size} ${text}\n`.length;
  return `${size} ${text}\n`;
};
const pax = (body: string | Buffer, type = "x"): Buffer => block({ name: "pax", type, body });
const end = Buffer.alloc(1_024);

function extract(archive: Buffer): { status: number | null; said: string } {
  const target = join(folder, "in");
  spawnSync("rm", ["-rf", target]); // deeper than any path, at times
  const { status, stderr } = spawnSync(binary, ["tar-extract", target], {
    input: archive,
    env: { ASAN_OPTIONS: "detect_leaks=0:allocator_may_return_null=1" },
    timeout: 60_000,
  });
  return { status, said: stderr.toString("latin1") };
}

function expectSound(archive: Buffer): { status: number | null; said: string } {
  const answer = extract(archive);
  expect(answer.said).not.toMatch(/Sanitizer|runtime error/);
  expect([0, 1, 2]).toContain(answer.status);
  expect(readdirSync(join(folder, "outside"))).toEqual(["secret"]);
  expect(readFileSync(join(folder, "outside", "secret"), "utf8")).toBe("secret");
  expect(readdirSync(folder).filter((name) => name !== "in")).toEqual(["outside"]);
  return answer;
}

const ff = (count: number): Buffer => Buffer.alloc(count, 0xff);

describe.skipIf(!isRoot)("an archive under the sanitizers", () => {
  it.each<[string, string | Buffer]>([
    ["white space and a line break", " \n"],
    ["white space and a line break before the size", "   \n4 "],
    ["white space only", "    "],
    ["a line break only", "\n"],
    ["a size of nothing", "0 a=b\n"],
    ["a size below its own digits", "2 a=b\n"],
    ["a size that ends at the space", "3 =\n"],
    ["a size beyond the record", "99 path=x\n"],
    ["a size beyond all numbers", "99999999999999999999999 path=x\n"],
    ["a negative size", "-9 path=x\n"],
    ["a sign", "+9 path=x\n"],
    ["white space before the size", "  12 path=x\n"],
    ["no line break", "9 path=x"],
    ["no value", "8 path\n\n"],
    ["no key", record("=value")],
    ["a NUL in the path", record("path=a\0b")],
    ["a size that is no number", record("size=abc")],
    ["a negative size of the file", record("size=-1")],
    ["a size of all numbers", record("size=18446744073709551615")],
    ["a time that is none", record("mtime=now")],
    ["an owner that is none", record("uid=1x")],
    ["a sparse map", record("GNU.sparse.map=0,1")],
  ])("refuses a pax record of %s", (_what, body) => {
    const answer = expectSound(Buffer.concat([pax(body), block({ body: "x" }), end]));
    expect(answer).toMatchObject({ status: 2, said: expect.stringMatching(/^invalid /) });
  });

  it.each<[string, Buffer[], RegExp]>([
    ["an empty value, which takes nothing", [pax(record("path=")), block({ body: "x" })], /^done 1 0/],
    ["a path without end", [pax(record(`path=${"a/".repeat(5_000)}f`)), block({})], /^done 1 0/],
    [
      "one name of 300 bytes",
      [pax(record(`path=${"a".repeat(300)}/f`)), block({})],
      /^skipped 36 .*\ndone 0 1/s,
    ],
    [
      "attributes without end",
      [pax(record(`SCHILY.xattr.user.a=${"x".repeat(900_000)}`)), block({})],
      /^done 1 0/,
    ],
    ["an attribute without a name", [pax(record("SCHILY.xattr.=x")), block({})], /^done 1 0/],
    ["records for all", [pax(record("mtime=-1.5"), "g"), block({}), block({ name: "g" })], /^done 2 0/],
    ["an owner below nothing", [block({ uid: ff(8) })], /^skipped 75 f\ndone 0 1/],
    ["an owner in base 256", [block({ uid: Buffer.from([128, 0, 0, 0, 0, 0x2d, 0xc6, 0xc0]) })], /^done 1 0/],
    [
      "a time beyond all",
      [block({ mtime: Buffer.concat([Buffer.from([0x80]), ff(11)]) })],
      /^skipped 75 f\ndone 0 1/,
    ],
    ["a time before 1970", [block({ mtime: ff(12) })], /^done 1 0/],
    ["a size below nothing", [block({ size: ff(12) })], /^invalid /],
    ["a size beyond all", [block({ size: Buffer.concat([Buffer.from([0x80]), ff(11)]) })], /^invalid /],
    [
      "a size just below the end",
      [pax(record("size=922337203685477579")), block({})],
      /^invalid it ends in the middle/,
    ],
    ["a long name without its body", [block({ type: "L", size: "00077777777" })], /^invalid /],
    [
      "a long name of 1 GiB",
      [block({ type: "L", size: "10000000000" })],
      /^invalid an extended header is larger/,
    ],
    ["an empty long name", [block({ type: "L" }), block({})], /^done 0 0/],
    ["sparse files", [block({ type: "S" })], /^invalid sparse/],
    ["a link into itself", [block({ type: "1", link: "f" })], /^skipped 2 f\ndone 0 1/],
    [
      "links in a ring",
      [
        block({ name: "a", type: "2", link: "b" }),
        block({ name: "b", type: "2", link: "a" }),
        block({ name: "a/x" }),
      ],
      /^skipped 21 a\ndone 2 1/,
    ],
    [
      "a link out, and what is behind it",
      [block({ type: "2", link: "../outside" }), block({ name: "f/x", body: "x" })],
      /^skipped 21 f\ndone 1 1/,
    ],
    ["a hard link out", [block({ type: "1", link: "../outside/secret" })], /^skipped 18 f\ndone 0 1/],
    ["a device and what follows", [block({ type: "4" }), block({ name: "g" })], /done [12] [01]/],
    [
      "a name with a line break",
      [block({ name: "../a\ninvalid no" })],
      /^skipped 18 \.\.\/a\?invalid no\ndone 0 1/,
    ],
  ])("takes %s", (_what, blocks, said) => {
    expect(expectSound(Buffer.concat([...blocks, end])).said).toMatch(said);
  });

  it("stays sound whatever is changed in one", () => {
    const whole = Buffer.concat([
      pax(
        record("path=a/b/c") +
          record("mtime=-1.25") +
          record("uid=3000000") +
          record("SCHILY.xattr.user.x=y"),
      ),
      block({ body: "x".repeat(600) }),
      block({ name: "l", type: "2", link: "../outside" }),
      block({ type: "L", body: `${"n".repeat(150)}\0` }),
      block({ body: "y" }),
      block({ name: "h", type: "1", link: "a/b/c" }),
      block({ name: "d/", type: "5" }),
      end,
    ]);
    const change = fc.record({
      block: fc.nat(whole.length / 512 - 1),
      at: fc.nat(511),
      byte: fc.nat(255),
    });
    fc.assert(
      fc.property(fc.array(change, { minLength: 1, maxLength: 4 }), (changes) => {
        const changed = Buffer.from(whole);
        for (const { block, at, byte } of changes) {
          const start = block * 512;
          changed[start + at] = byte;
          // In a header with its checksum made right again, or nothing of it would be read.
          if (changed.toString("latin1", start + 257, start + 262) !== "ustar") continue;
          changed.fill(" ", start + 148, start + 156);
          const sum = changed.subarray(start, start + 512).reduce((total, one) => total + one, 0);
          changed.write(`${sum.toString(8).padStart(6, "0")}\0 `, start + 148, "latin1");
        }
        expectSound(changed);
      }),
      plan(60),
    );
  });
});
